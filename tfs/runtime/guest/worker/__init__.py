"""A worker process: its loop, its model, and what it does between calls.

``worker`` has the main thread, which waits for calls and answers them (``call_slots``,
``slab_tensors``), as more threads of a model may, and the threads that do what else the
host asks for, with ``worker_model`` for the load.
"""
