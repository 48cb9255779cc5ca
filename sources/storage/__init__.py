"""Where versions lie: what is read of a directory, and by which threads."""
