"""What the server was told to serve: reads, checks and changes configs, and waits for them."""
