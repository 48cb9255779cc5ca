"""Joins requests for one signature into batches, and gives their rows back."""
