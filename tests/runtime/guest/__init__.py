"""Tests of what runs inside an interpreter."""
