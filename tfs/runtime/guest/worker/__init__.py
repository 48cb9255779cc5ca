"""A worker process: its loop, its model, and what it does between calls.

``worker`` is the main thread, which waits for calls and answers them (``call_slots``,
``call_answerer``, ``slab_tensors``), as more threads of a model may. ``worker_control``
does what else the host asks for, on threads of its own, with ``worker_model`` and
``memory_limit`` for the load.
"""
