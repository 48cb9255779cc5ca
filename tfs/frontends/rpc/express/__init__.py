"""Our own HTTP/2 server for gRPC: a sans-IO protocol and a thin epoll driver.

From the wire up: ``frames``, ``stream_state`` (the table), ``hpack_decoder`` and
``hpack_cache``, ``request_head``, ``messages``, ``flow_control``, ``patience``,
``connection``; nothing of these knows a socket.
"""
