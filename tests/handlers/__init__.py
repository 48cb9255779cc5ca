"""Tests of tfs.handlers."""
