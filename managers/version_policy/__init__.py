"""What to load or unload next of one servable stream: pure functions."""
