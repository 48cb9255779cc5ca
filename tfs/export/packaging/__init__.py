"""Puts a module's code and weights into one archive, and explains what cannot go in."""
