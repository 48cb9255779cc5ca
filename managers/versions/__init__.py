"""The versions of a manager: where each stands, and what is published of it."""
