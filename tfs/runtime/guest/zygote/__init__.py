"""The program that has imported torch and forks every worker, and how it forks.

``zygote`` is the program, and what its forks do to become workers.
``process_tree`` makes them children of the server, and ends them with it. It knows nothing
of torch, so that a server may import it before anything else.
"""
