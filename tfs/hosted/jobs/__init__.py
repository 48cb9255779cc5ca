"""Starts and ends the servers of a fleet: one port, and what runs them behind it."""
