"""Tests of a worker's own loop."""
