"""The serving loop, and what keeps its rounds short."""
