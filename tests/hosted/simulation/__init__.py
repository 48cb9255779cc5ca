"""A fleet of thousands of servers, simulated."""
