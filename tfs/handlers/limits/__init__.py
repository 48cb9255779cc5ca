"""How many requests are taken, and what is counted of each."""
