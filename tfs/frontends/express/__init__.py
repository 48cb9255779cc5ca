"""Our own HTTP/2 server for gRPC: a sans-IO protocol and a thin epoll driver.

The protocol is ``http2``, which knows no socket. Around it, from below: ``client_state`` is
what a client's calls share, ``call`` is what handlers see, ``session`` is
an accepted socket with its calls, and ``transport`` has all of them and the listeners.
"""
