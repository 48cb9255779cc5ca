"""Our own HTTP/2 server for gRPC: a sans-IO protocol and a thin epoll driver.

The protocol, which knows no socket, from the wire up: ``frames``, ``stream_state``
(the table), ``hpack_decoder`` and ``hpack_cache``, ``request_head``, ``messages``,
``peer_settings``, ``flow_control``, ``patience``, ``response``, ``connection``.

The driver around it: ``listener`` (bound sockets), ``session`` (an accepted one),
``express_call`` (what handlers see), ``deadlines``, ``shared_state``, ``transport``.

TLS will be a wrapper of a session's socket; until then a listener with TLS is
refused, and the grpcio transport serves it.
"""
