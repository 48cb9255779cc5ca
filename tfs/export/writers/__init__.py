"""A module in each of the forms that a version can have."""
