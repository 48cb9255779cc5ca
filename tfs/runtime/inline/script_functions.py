"""Functions that a model decorates with ``torch.jit.script``, in the server's process.

torch frees no function that it has compiled, so each version would leave its own there. In
workers, which end with their version, they are compiled.
"""

from __future__ import annotations

from torch.jit import _state


def leave_alone() -> None:
    """Has them run as Python in this process from now on."""
    # Private: without it they are compiled here again, and stay.
    vars(_state).get("disable", lambda: None)()
