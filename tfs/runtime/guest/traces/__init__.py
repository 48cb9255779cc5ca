"""What a model leaves behind in its process: looked for before another model gets it."""
