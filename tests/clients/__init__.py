"""Real client packages against us, each in an environment of its own."""
