"""What the code of a version can reach, read off its files."""
