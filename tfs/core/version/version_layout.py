"""Which files make a directory a version of a built-in platform, and what it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ARCHIVE: Final = "model.pt"
PROGRAM: Final = "model.pt2"
SOURCE: Final = "servable.py"
SAFETENSORS: Final = "weights.safetensors"
CHECKPOINT: Final = "weights.pt"


@dataclass(frozen=True, slots=True)
class VersionLayout:
    """What a version of a platform consists of. Immutable.

    Attributes:
        files: By one of these it is known.
        weights: Files beside it that interpreters share as well, if they are there.
        is_self_describing: Whether its file tells the signatures.
        entry_keys: What the entry of its manifest may hold, besides what all may; None if
            no interpreter runs it.
        saved_as: The forms of ``tfs.export.save`` that write it.

    """

    files: tuple[str, ...]
    weights: tuple[str, ...] = ()
    is_self_describing: bool = False
    entry_keys: tuple[str, ...] | None = None
    saved_as: tuple[str, ...] = ()


LAYOUTS: Final[Mapping[str, VersionLayout]] = {
    "torch_package": VersionLayout(
        (ARCHIVE,),
        entry_keys=("methods", "package", "resource"),
        saved_as=("torch_package",),
    ),
    "torch_export": VersionLayout(
        (PROGRAM,),
        is_self_describing=True,
        entry_keys=("args", "repeated"),
        saved_as=("torch_export", "aotinductor"),
    ),
    "torchscript": VersionLayout(
        (ARCHIVE,), entry_keys=("methods",), saved_as=("torchscript",)
    ),
    "python": VersionLayout(
        (SOURCE,),
        (SAFETENSORS, CHECKPOINT),
        is_self_describing=True,
        entry_keys=("class", "methods"),
    ),
    "hashmap": VersionLayout(("table.csv", "table.json"), is_self_describing=True),
}
"""By platform."""

VERSION_FILES: Final = tuple(
    dict.fromkeys(name for layout in LAYOUTS.values() for name in layout.files)
)
"""Files that make a directory a version of a built-in platform."""

RUN_PLATFORMS: Final = tuple(
    n for n, of in LAYOUTS.items() if of.entry_keys is not None
)
"""Platforms whose versions interpreters run."""

SAVED_FORMS: Final = tuple(form for of in LAYOUTS.values() for form in of.saved_as)
"""What ``tfs.export.save`` takes for its platform."""
