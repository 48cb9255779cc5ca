"""Real-shaped architectures in plain torch, packaged and compared."""
