"""What runs inside an interpreter: one module per platform, and the worker itself.

Imports ``tfs.core`` and torch only, so that a worker process holds neither the RPC
stack nor anything else of the server.
"""
