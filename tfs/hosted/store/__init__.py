"""Where a fleet's state is kept: one port, a file or a database behind it."""
