"""What a platform's workers import, where that takes long: once for all of them.

A graph of torch.export takes 1.3 s of imports and 90 MB of memory to read. A zygote that
has them behind it forks workers that have them, too, in milliseconds and shared.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "torch_export": (
        "tfs.runtime.guest.torch_export",
        # What reading a program imports when it comes to it; names of torch's own,
        # so that one that is gone costs nothing but its time.
        "torch.export._trace",
        "torch.export._unlift",
        "torch.fx.experimental.validator",
        "torch.utils.serialization",
        "torch._inductor.package",
        "torch._inductor.sizevars",
        "sympy.combinatorics",
        "sympy.tensor.tensor",
    )
}
"""Modules to import in advance, by platform; the other platforms import little."""

# Of this process, whose modules they are; forks inherit both.
_spent_s: dict[str, float] = {}


def import_for(platform: str) -> None:
    """Imports what the platform needs, as far as it is there, and warms it up.

    What is missing is reported by who loads a version that needs it.
    """
    # Needs torch, which the server's process may have to do without.
    from tfs.runtime.guest.devices.no_devices import no_devices

    begun_s = time.thread_time()
    for name in MODULES[platform]:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            # Whatever goes wrong in it, a version that is loaded tells of as well.
            with contextlib.suppress(Exception), no_devices():
                getattr(module, "warm_up", lambda: None)()
    _spent_s[platform] = time.thread_time() - begun_s


def imported_s(platform: str) -> float:
    """Returns the processor time that loading was spared in this process.

    Whoever loads a version where nothing was imported before has to add it.
    """
    return _spent_s.get(platform, 0.0)
