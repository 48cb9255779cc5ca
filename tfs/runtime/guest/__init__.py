"""What runs inside an interpreter: one module per platform, and the worker itself.

It imports only ``tfs.core`` and torch, so that a worker process contains neither the
RPC stack nor anything else of the server.
"""
