"""Maps torch's libraries before torch is imported, without Python's lock.

Python's own import holds the lock while a library is mapped and its constructors run: 0.3
to 0.7 s for torch's, in which no request is answered, while a server that has opened its
ports already imports torch. Called as a C function, the same takes nobody's time, and the
import finds them there: the longest pause of the import becomes 0.05 to 0.1 s.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Final

# In torch's own order and with its flags: the first one brings what others look up
# globally. Neither knows of Python, so neither needs its lock.
_LIBRARIES: Final = (
    ("libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL),
    ("libtorch.so", os.RTLD_NOW),
)


def map_torch_libraries() -> int:
    """Maps what ``import torch`` would; returns how many libraries are there now.

    Blocks, without Python's lock. A library that is not there, or cannot be mapped, is
    left to the import, which says so.
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
