"""Backend ``inline``: threads of the server process."""
