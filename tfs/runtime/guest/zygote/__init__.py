"""The program that has imported torch and forks every worker, and how it forks.

``zygote`` is the program, and ``forked_process`` what its forks do to become workers.
``clone_parent`` makes them children of the server, and ``parent_death`` ends them with it.
These two know nothing of torch, so that a server may import them before anything else.
"""
