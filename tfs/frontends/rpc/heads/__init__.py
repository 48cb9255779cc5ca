"""What the headers of requests say, from HPACK's bytes to a checked head, for both transports."""
