"""Imports what takes long to import for a platform's workers, once for all of them.

Reading a graph of torch.export takes 1.3 s of imports and 90 MB of memory. A zygote
that has done that forks workers that have done it too, in milliseconds, and they share
the memory.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "torch_export": (
        "tfs.runtime.guest.platforms.torch_export",
        # Modules that torch imports only while it reads a program. They are private to
        # torch; if one does not exist any more, the first load imports what it needs.
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

# Per process, like the modules themselves; forks inherit both.
_spent_s: dict[str, float] = {}


def import_for(platform: str) -> None:
    """Imports the modules that the platform needs and that exist.

    A missing one is reported when a version that needs it is loaded.
    """
    begun_s = time.thread_time()
    for name in MODULES[platform]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _spent_s[platform] = time.thread_time() - begun_s


def imported_s(platform: str) -> float:
    """Returns the processor time that these imports took, which a load here is spared.

    A load in a process that has imported nothing needs that time in addition.
    """
    return _spent_s.get(platform, 0.0)
