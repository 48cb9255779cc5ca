"""Tests of tfs.export."""
