"""Tests of tfs.server."""
