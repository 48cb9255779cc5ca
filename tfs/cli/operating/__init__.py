"""Commands that operate a running server, by its AdminService."""
