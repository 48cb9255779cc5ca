"""The memory of the server process: collector, allocator, and what is given back."""
