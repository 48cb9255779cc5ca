"""Our own HTTP/2 server for gRPC: a sans-IO protocol and a thin epoll driver.

The protocol is ``http2``, which knows no socket. The driver around it consists of
``listener`` (bound sockets), ``acceptor``, ``session`` (an accepted socket),
``express_call`` (what handlers see), ``deadlines``, ``shortage`` (who goes on while
memory is short), ``shared_state`` and ``transport``.

With TLS, ``tls_handshake`` comes before the session, and ``tls_session`` is a session
that encrypts what it sends and decrypts what it reads, by a ``tls_stream``.
"""
