"""A version on trial: its share of the requests, what is compared, when it ends."""
