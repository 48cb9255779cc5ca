"""What a server listens on."""
