"""What is written in a version's directory: the manifest and its parts."""
