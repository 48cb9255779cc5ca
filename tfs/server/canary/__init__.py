"""A version on trial: its share of the requests, the comparison, and the trial's end."""
