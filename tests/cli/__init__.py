"""Tests of tfs.cli."""
