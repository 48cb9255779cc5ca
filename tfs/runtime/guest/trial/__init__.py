"""A version is tried in a process of its own, before it is committed.

``trial`` loads it and calls it as a worker does; ``watched_reads`` notes what it takes
from its process that another one would not have.
"""
