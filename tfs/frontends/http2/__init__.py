"""One client's HTTP/2 connection for gRPC, sans IO: bytes in, events and bytes out.

It knows neither sockets nor threads nor the serving loop, and is told the time. It begins
with ``connection``, which names its parts.
"""
