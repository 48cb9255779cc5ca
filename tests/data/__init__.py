"""What tests read, and the scripts that made it."""
