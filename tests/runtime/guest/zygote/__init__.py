"""Tests of the zygote."""
