"""How requests reach the jobs that have their models."""
