<<<<<<< HEAD
"""Tests of the front ends."""
=======
"""Tests of tfs.frontends."""
>>>>>>> ea5dda6 (lead work)
