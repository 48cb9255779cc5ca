"""Interpreters that run ordinary Python models: in this process and beside it."""
