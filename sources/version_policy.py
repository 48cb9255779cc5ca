"""Chooses the aspired versions among those at hand: latest n, all, or named ones. Pure.

(TensorFlow Serving: FileSystemStoragePathSourceConfig.ServableVersionPolicy.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

MAX_VERSION: Final = (1 << 63) - 1

# ASCII digits only: int() would also take "1_0" and other scripts' digits. The sign
# and the blanks are what TensorFlow Serving's parser tolerates.
_NUMBER = re.compile(r"\s*\+?([0-9]+)\s*", re.ASCII)


WHAT_A_VERSION_IS: Final = (
    f"that is a whole number up to {MAX_VERSION}, in one directory"
)
"""The end of a sentence on a name that is no version."""

# What looks like a version to whoever named it: dates, releases, negative numbers.
_LOOKALIKE = re.compile(r"\s*[vV+-]?\d[\d.,:_-]*\s*")

# Most versions that a reason names. It is kept with every version that it names, so the
# reason of ten thousand versions must not grow with their number.
_MAX_LISTED: Final = 10
_MAX_NAMES: Final = 5


def list_names(names: Sequence[str]) -> str:
    """Returns names in quotes, for people; of very many the first."""
    listed = ", ".join(map(repr, names[:_MAX_NAMES]))
    left_out = len(names) - _MAX_NAMES
    return f"{listed} and {left_out} more" if left_out > 0 else listed


def list_versions(versions: Collection[int]) -> str:
    """Returns versions in order, for people; of very many the first and last."""
    listed = list(map(str, versions))
    if len(listed) <= _MAX_LISTED:
        return ", ".join(listed)
    half = _MAX_LISTED // 2
    left_out = len(listed) - 2 * half
    return ", ".join((*listed[:half], f"({left_out} more)", *listed[-half:]))


@dataclass(frozen=True, slots=True)
class Latest:
    """The ``num`` highest versions; 0 counts as 1, as in TensorFlow Serving.

    Attributes:
        num: How many.
        besides: Versions that do not count: a canary is no reason to unload another.

    """

    num: int = 1
    besides: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num < 0:
            raise ValueError(f"latest needs a number of versions >= 0: {self.num}")

    def __str__(self) -> str:
        return f"latest({max(1, self.num)})"


@dataclass(frozen=True, slots=True)
class All:
    """Every version.

    Attributes:
        besides: Versions that do not count.

    """

    besides: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return "all"


@dataclass(frozen=True, slots=True)
class Specific:
    """Exactly these versions, as far as they exist; none at all if empty."""

    versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for version in self.versions:
            if not 0 <= version <= MAX_VERSION:
                raise ValueError(f"no such version number: {version}")

    def __str__(self) -> str:
        return f"specific({list_versions(self.versions)})"


VersionPolicy: TypeAlias = Latest | All | Specific


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of a policy for the versions at hand.

    Attributes:
        versions: The aspired versions, each once. Latest has the highest first, All the
            lowest first, Specific the order of the policy and then the pinned ones.
        missing: Versions that the policy names or that are pinned, but that are not at
            hand or not ready.

    """

    versions: tuple[int, ...]
    missing: tuple[int, ...] = ()


def choose(
    policy: VersionPolicy,
    versions: Iterable[int],
    is_ready: Callable[[int], bool] = lambda _: True,
    pinned: Iterable[int] = (),
) -> Chosen:
    """Applies ``policy`` to the versions that are at hand and ready.

    Args:
        policy: The rule.
        versions: The versions at hand, in any order, repeats allowed.
        is_ready: Tells whether a version at hand is whole. It is asked at most once for
            each, and only for versions that the policy considers.
        pinned: Aspired whatever the policy says, if at hand and ready.

    """
    at_hand = set(versions)
    answers: dict[int, bool] = {}

    def ready(version: int) -> bool:
        if version not in answers:
            answers[version] = version in at_hand and is_ready(version)
        return answers[version]

    named: list[int] = []
    chosen: list[int] = []
    match policy:
        case Latest(num, besides):
            for version in sorted(at_hand, reverse=True):
                if len(chosen) == max(1, num):
                    break
                if version not in besides and ready(version):
                    chosen.append(version)
        case All(besides):
            chosen = [v for v in sorted(at_hand) if v not in besides and ready(v)]
        case Specific(wanted):
            named = list(dict.fromkeys(wanted))
            chosen = [version for version in named if ready(version)]
        case _:
            assert_never(policy)
    extra = [v for v in sorted(set(pinned)) if v not in chosen and ready(v)]
    chosen += extra
    if extra and isinstance(policy, Latest):
        chosen.sort(reverse=True)
    elif extra and isinstance(policy, All):
        chosen.sort()
    wanted_by_name = dict.fromkeys([*named, *sorted(set(pinned))])
    return Chosen(
        tuple(chosen), tuple(v for v in wanted_by_name if v not in set(chosen))
    )


def parse_version(name: str) -> int | None:
    """Returns the version a directory's name stands for, None if it is no number.

    Leading zeros, a plus sign and surrounding blanks are tolerated; negative
    numbers and those beyond 63 bits are not versions.
    """
    match = _NUMBER.fullmatch(name)
    if match is None:
        return None
    version = int(match[1])
    return version if version <= MAX_VERSION else None


def name_versions(names: Iterable[str]) -> dict[int, str]:
    """Returns names by the version they stand for.

    Of several names for one version ("1", "001") the last in sorted order wins,
    as in TensorFlow Serving: for zeros in front that is the plainest name.
    """
    found: dict[int, str] = {}
    for name in sorted(names):
        version = parse_version(name)
        if version is not None:
            found[version] = name
    return found


def list_lookalikes(names: Iterable[str]) -> list[str]:
    """Returns names that look like versions and are none, such as "v1" or "1.0".

    Of several names for one version, those that do not win are among them.
    """
    listed = sorted(names)
    versions = {*name_versions(listed).values()}
    return [n for n in listed if n not in versions and _LOOKALIKE.fullmatch(n)]
