"""Recorded requests, replayed before a version is available."""
