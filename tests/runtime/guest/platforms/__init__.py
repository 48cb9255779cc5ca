"""Tests of what platforms have in common inside an interpreter."""
