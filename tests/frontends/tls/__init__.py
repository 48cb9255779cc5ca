"""Tests of the express transport."""
