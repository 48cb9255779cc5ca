"""The page at ``/`` of the HTTP port: what the server does, for people."""
