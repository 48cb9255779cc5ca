"""Carries out loads and unloads: pools, memory, and what is given back afterwards."""
