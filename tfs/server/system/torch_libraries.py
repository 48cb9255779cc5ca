"""Maps torch's libraries before torch is imported, without Python's lock.

A server imports torch when its ports are open already. Python's own import holds the
lock while a library is mapped and its constructors run. For torch's libraries that is
0.3 to 0.7 s in which no request is answered. As a call of a C function, the same work
holds up nobody, and the import then finds the libraries mapped: its longest pause
becomes 0.05 to 0.1 s.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Final

# The order and the flags are torch's own: later libraries look up symbols of the first
# one globally. Neither library calls Python, so neither needs its lock.
_LIBRARIES: Final = (
    ("libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL),
    ("libtorch.so", os.RTLD_NOW),
)


def map_torch_libraries() -> int:
    """Maps the libraries that ``import torch`` would map; returns how many are mapped now.

    Blocks, without Python's lock. A library that does not exist or cannot be mapped is
    left to the import, which reports that.
    """
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    dlopen.restype = ctypes.c_void_p
    num_mapped = 0
    for folder in folders:
        for name, flags in _LIBRARIES:
            path = Path(folder, "lib", name)
            if path.exists() and dlopen(os.fsencode(path), flags):
                num_mapped += 1
    return num_mapped
