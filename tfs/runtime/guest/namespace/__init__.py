"""The inside of a private Python: its boot, its threads, and its side of the calls."""
