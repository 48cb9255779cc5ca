"""gRPC: two transports behind one seam, ``tfs.core.call.Transport``."""
