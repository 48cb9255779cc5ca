"""Benchmarks, one module per area, and the harness they share.

Run one by `make bench-AREA`, or `python -m tests.benchmarks.AREA` from the root.
"""
