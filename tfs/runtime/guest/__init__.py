"""What runs inside an interpreter, a room for each part of it.

``platforms`` load and call models; ``guest_model`` is what each of them makes. Around
them is ``worker``, the loop of a process, which the ``zygote`` forks, or ``namespace``,
the inside of a private Python. ``sessions`` are for users of the library. ``weights``
and ``devices`` serve the platforms; ``layered`` computes models in stages, and ``side_effects`` finds what a model changes for
others. What lies beside the rooms is what several of them use, and what the host uses
too.

It imports only ``tfs.core`` and torch, so that a worker process contains neither the
RPC stack nor anything else of the server.
"""
