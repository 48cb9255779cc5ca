"""The vocabulary and the seams every room shares: standard library only."""
