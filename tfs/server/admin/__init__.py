"""Operating a running server: what AdminService does, and what it reports."""
