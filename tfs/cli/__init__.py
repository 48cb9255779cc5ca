"""The command line. Heavy imports stay inside the commands."""
