"""Finds what a model's code changes for others: for its process, and for its thread.

A model that changes anything of these never runs in the server's process, where it would
change what other models compute.
"""
