"""Tests of weights that several interpreters share."""
