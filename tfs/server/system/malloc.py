"""Tells glibc to keep the memory of large messages instead of giving it back at once.

By default glibc maps every large block anew and unmaps it when it is freed. It also
shrinks the heap whenever twice the size of such a block is free at its end (that size
starts at 128 KB and adapts to what glibc sees). A server whose requests and replies are
images or larger then pays for page faults on most of them, again and again. With the
thresholds below, such blocks come from the heap and stay there. The memory of a version
is returned when it is unloaded, by ``malloc_trim`` (:mod:`tfs.core.process_memory`), whatever
the thresholds are.

There is one heap for all threads. From further heaps, ``malloc_trim`` does not return
memory that is free at their ends, which is up to 64 MB for each thread that ever had a
large message.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

Mallopt = Callable[[int, int], int]
"""mallopt(parameter, value); 0 if that was refused."""

# From malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_TUNABLES: Final = "GLIBC_TUNABLES"


@dataclass(frozen=True, slots=True)
class Setting:
    """One of malloc's parameters. Immutable.

    Attributes:
        parameter: Its number for mallopt.
        variable: The environment variable with which operators set it.
        tunable: Its name in GLIBC_TUNABLES.
        value: The value that we set.

    """

    parameter: int
    variable: str
    tunable: str
    value: int


PLENTY_SETTINGS: Final = (
    # The most that glibc takes: larger blocks are mapped, and unmapped when freed.
    Setting(
        _M_MMAP_THRESHOLD,
        "MALLOC_MMAP_THRESHOLD_",
        "glibc.malloc.mmap_threshold",
        32 << 20,
    ),
    Setting(
        _M_TRIM_THRESHOLD,
        "MALLOC_TRIM_THRESHOLD_",
        "glibc.malloc.trim_threshold",
        256 << 20,
    ),
)

SCARCE_SETTINGS: Final = tuple(
    replace(setting, value=value)
    for setting, value in zip(PLENTY_SETTINGS, (1 << 20, 4 << 20), strict=True)
)
"""Settings while memory is scarce: large blocks are mapped, and returned when they are
freed. Within the heap, half of the memory that answers of 10 MB had used was holes
again one second after each trim."""

SETTINGS: Final = (
    *PLENTY_SETTINGS,
    # Not more than this: glibc joins small freed blocks only when a heap has no room
    # left at its end. Until then a thread's heap grows with each request (measured with
    # 64 MB: by 11 MB per million requests to a model on a thread).
    Setting(_M_TOP_PAD, "MALLOC_TOP_PAD_", "glibc.malloc.top_pad", 1 << 20),
    Setting(_M_ARENA_MAX, "MALLOC_ARENA_MAX", "glibc.malloc.arena_max", 1),
)


def apply_settings(
    mallopt: Mallopt | None = None,
    environment: Mapping[str, str] = os.environ,
    settings: Sequence[Setting] = SETTINGS,
) -> tuple[Setting, ...]:
    """Sets the thresholds that the operator has not set; for the whole process.

    Does nothing without glibc. Thread-safe; the number of heaps is for the start.

    Args:
        mallopt: Sets a parameter; None for the function of glibc.
        environment: Environment variables with the operator's settings.
        settings: The settings to make.

    Returns:
        The settings that are in force now because of this call.

    """
    mallopt = mallopt or _find_mallopt()
    if mallopt is None:
        return ()
    tunables = environment.get(_TUNABLES, "")
    return tuple(
        setting
        for setting in settings
        if setting.variable not in environment
        and f"{setting.tunable}=" not in tunables
        and mallopt(setting.parameter, setting.value)
    )


def set_scarce(is_scarce: bool) -> None:
    """Sets the thresholds for the time in which memory is scarce, or after it."""
    apply_settings(settings=SCARCE_SETTINGS if is_scarce else PLENTY_SETTINGS)


@functools.cache
def _find_mallopt() -> Mallopt | None:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - other libraries have no such function
        function = libc.mallopt
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int]
    function.restype = ctypes.c_int
    found: Mallopt = function
    return found
