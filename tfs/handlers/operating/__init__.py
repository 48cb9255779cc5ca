"""The services that operate a server, and who may call them."""
