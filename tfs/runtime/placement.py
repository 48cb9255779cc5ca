"""Where a version runs: one pure function of options and measurements.

Rejected: deciding by model size or operator counts. How long a model holds the GIL is
cheap to measure and hard to guess.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import FailedPrecondition
from tfs.core.version.model_profile import ModelProfile

FRONT_S: Final = 200e-6
"""A model may run on the serving loop if a full batch takes no longer."""
INLINE_SCALING: Final = 1.7
"""Two threads that are so much faster than one show that the kernels run without the
GIL."""
IN_PROCESS_IMPORT_S: Final = 0.030
"""Importing holds the GIL: a model that takes longer to import stays out of the server
process."""
MARGIN: Final = 0.25
"""A measured time that is within this share of its limit decides for a process: on
another day it would be on the other side."""
FRONT_LIMIT_S: Final = 0.010
"""A call on the serving loop that takes longer moves its model off the loop."""


class Backend(enum.Enum):
    """A kind of interpreter; the value is the word used in configurations."""

    AUTO = "auto"
    FRONT = "front"
    INLINE = "inline"
    PROCESS = "process"
    DLMOPEN = "dlmopen"


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """What was asked for. Immutable.

    Attributes:
        backend: AUTO decides by measurements; any other is used.
        isolation_required: Whether the version must run in a process, because only that
            contains whatever the model does.
        device: Where the model computes.

    """

    backend: Backend = Backend.AUTO
    isolation_required: bool = False
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a version runs, and why, in words with the numbers. Immutable."""

    backend: Backend
    reason: str


def place(
    options: PlacementOptions,
    profile: ModelProfile | None,
    concurrency: int = 1,
    why_apart: str = "",
) -> Placement:
    """Returns where a version runs; never AUTO.

    Args:
        options: What was asked for.
        profile: What was measured; None for nothing yet.
        concurrency: How many requests at a time the version takes in one interpreter.
        why_apart: Why its code must not run in the server process, as read off its
            files; "" if it may.

    Raises:
        FailedPrecondition: What was asked for does not go together.

    """
    if options.isolation_required:
        if options.backend not in (Backend.AUTO, Backend.PROCESS):
            raise FailedPrecondition(
                f"isolation is required, and backend {options.backend.value!r} isolates "
                "nothing; use process, or drop one of the two"
            )
        return Placement(Backend.PROCESS, "isolation is required")
    if options.backend is not Backend.AUTO:
        return _asked_for(options)
    if why_apart:
        return Placement(Backend.PROCESS, why_apart)
    if options.device != "cpu":
        return Placement(
            Backend.INLINE, f"device {options.device}: one context for all"
        )
    if profile is None:
        return Placement(Backend.PROCESS, "not measured yet")
    return _by_profile(profile, concurrency)


def _asked_for(options: PlacementOptions) -> Placement:
    backend = options.backend
    if backend is Backend.DLMOPEN and options.device != "cpu":
        raise FailedPrecondition(
            f"backend 'dlmopen' computes on the CPU only, not on {options.device}; use "
            "inline or process"
        )
    return Placement(backend, "asked for")


def _by_profile(profile: ModelProfile, concurrency: int) -> Placement:
    if death := profile.how_it_died():
        return Placement(Backend.PROCESS, death)
    import_s = profile.import_s
    if import_s is None:
        return Placement(Backend.PROCESS, "its import was not measured")
    if import_s > (1 - MARGIN) * IN_PROCESS_IMPORT_S:
        return Placement(
            Backend.PROCESS,
            f"importing took {import_s * 1e3:.0f} ms, which is not well below "
            f"{IN_PROCESS_IMPORT_S * 1e3:.0f} ms",
        )
    if profile.process_changes:
        return Placement(
            Backend.PROCESS,
            f"loading it changes {profile.process_changes} of its whole process",
        )
    if concurrency > 1:
        return Placement(
            Backend.INLINE, f"it takes {concurrency} requests at once and joins them"
        )
    batches_s = [each.full_batch_s for each in profile.signatures.values()]
    known_s = [batch_s for batch_s in batches_s if batch_s is not None]
    slowest_s = max(known_s) if known_s and len(known_s) == len(batches_s) else None
    if slowest_s is not None and slowest_s <= (1 + MARGIN) * FRONT_S:
        is_quick = slowest_s <= (1 - MARGIN) * FRONT_S
        return Placement(
            Backend.FRONT if is_quick else Backend.PROCESS,
            f"a full batch takes {slowest_s * 1e6:.0f} us, "
            f"{'well below' if is_quick else 'close to'} {FRONT_S * 1e6:.0f} us",
        )
    batch_text = "a full batch was not measured"
    if slowest_s is not None:
        batch_text = f"a full batch takes {slowest_s * 1e6:.0f} us"
    scaling = profile.two_thread_scaling
    if scaling is None:
        return Placement(Backend.PROCESS, f"{batch_text}; scaling was not measured")
    if scaling >= INLINE_SCALING:
        return Placement(
            Backend.INLINE,
            f"{batch_text}; two threads scale {scaling:.2f} >= {INLINE_SCALING}",
        )
    return Placement(
        Backend.PROCESS,
        f"{batch_text}; two threads scale {scaling:.2f} < {INLINE_SCALING}",
    )
