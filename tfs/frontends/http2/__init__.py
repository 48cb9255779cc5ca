"""One client's HTTP/2 connection for gRPC, sans IO: bytes in, events and bytes out.

It knows neither sockets nor threads nor the serving loop, and is told the time. From
the wire up it consists of ``frames``, ``stream_state`` (the table), what is in
``tfs.frontends.http2``, ``messages``, ``peer_settings``,
``flow_control``, ``patience``, ``response`` and ``connection``, which names the layers.
"""
