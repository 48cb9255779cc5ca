"""What the server was told to serve: read, checked, laid over, waited for."""
