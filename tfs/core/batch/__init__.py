"""Batches: tasks that wait together, and the queue in which they do."""
