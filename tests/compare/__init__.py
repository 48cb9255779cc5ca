"""This tree's server beside that of an earlier commit: what either answers must agree."""
