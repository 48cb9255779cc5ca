"""Tests through a real server process."""
