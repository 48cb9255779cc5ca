"""Finds what a model left behind in its process, before another model gets that process."""
