"""Tests of managers."""
