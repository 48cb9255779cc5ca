"""A module's signatures, found by calling it on its author's example."""
