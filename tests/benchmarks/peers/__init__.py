"""Other model servers, each set up and driven as its own documentation advises."""
