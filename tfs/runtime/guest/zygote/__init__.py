"""The program that has imported torch and forks every worker, and how it forks.

``zygote`` is the program. ``sibling_fork`` makes what it forks children of the server, and
``parent_death`` ends them with it. The two know nothing of torch, so that a server may
import them before anything else.
"""
