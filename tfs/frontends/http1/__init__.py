"""HTTP/1.1 on the serving loop, under the memory budget of the other transports."""
