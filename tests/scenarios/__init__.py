"""Golden scenarios of the lifecycle and their runner."""
