"""Tests of tfs.proto: the same wire as upstream, in a pool of our own."""
