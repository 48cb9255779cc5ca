"""Tests of tfs.core."""
