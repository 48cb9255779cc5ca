"""A server's end of TLS, from the certificates to an accepted client, for both transports."""
