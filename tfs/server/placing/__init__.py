"""Where and how a server runs the versions of its models."""
