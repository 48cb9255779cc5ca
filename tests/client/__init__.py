"""Tests of tfs.client."""
