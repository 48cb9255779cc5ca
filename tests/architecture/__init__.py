"""Tests of the tree itself: who imports whom, what lies where."""
