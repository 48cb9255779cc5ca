"""Measures what a version costs and how it behaves, before it serves and again later."""
