"""What a server asks of Linux, and how it uses the process it is."""
