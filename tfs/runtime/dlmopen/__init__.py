"""Backend ``dlmopen``: private CPythons within the server process."""
