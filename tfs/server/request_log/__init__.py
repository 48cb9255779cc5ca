"""Sampled requests, written to files off the request path."""
