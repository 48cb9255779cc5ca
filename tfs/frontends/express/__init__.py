"""Our own HTTP/2 server for gRPC: a sans-IO protocol and a thin epoll driver.

The protocol is ``http2``, which knows no socket. The driver around it consists of
``acceptor`` (which has the ``listener``), ``session`` (an accepted socket),
``session_calls`` (the calls on it), ``express_call`` and ``express_stream_call`` (what
handlers see), ``deadlines``, ``shared_state`` and ``transport``. While memory is short,
``shortage`` decides who goes on: whose uploads (``client_uploads``) and whose requests
(``waiting_requests``).

With TLS, a handshake comes before the session, and ``tls_session`` is a session that
encrypts what it sends and decrypts what it reads, by what is in ``tfs.frontends.tls``.
"""
