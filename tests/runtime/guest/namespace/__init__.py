"""Tests of the inside of a private Python."""
