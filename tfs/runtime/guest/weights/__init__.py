"""Weights that lie in memory once for every interpreter, and how torch gets to them."""
