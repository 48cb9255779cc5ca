"""What to load or unload next of one servable: pure functions over snapshots."""
