"""The composition root: options, config, and the process that serves."""
