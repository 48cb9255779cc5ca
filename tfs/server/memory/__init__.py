"""The process's own memory: collector, allocator, what is given back."""
