"""Tests of the interpreters and of what runs inside them."""
