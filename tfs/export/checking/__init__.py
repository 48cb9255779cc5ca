"""A version in a process of its own, before it appears."""
