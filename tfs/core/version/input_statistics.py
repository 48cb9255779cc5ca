"""What the inputs of a model look like, in figures, and how far others are from them; pure.

A version brings the figures of the inputs that it was made for (``statistics.json``). A
number that is not finite and an empty string are missing.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from tfs.core.errors import DataLoss, InvalidArgument, NotFound

STATISTICS: Final = "statistics.json"

MIN_VALUES: Final = 100
"""Fewer live values of an input say nothing of how they are spread."""

_NUM_BINS: Final = 10
_MAX_WORDS: Final = 100

Value: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """The recorded values of one input. Immutable.

    Attributes:
        missing: Which share of them is missing.
        edges: Of numbers, the lowest, those between ten bins as full as each other, and
            the highest.
        words: Of strings, the most frequent.
        shares: Which share of those that are not missing is below all edges, at the
            lowest, up to each other one, and above all; or is each word, and none.

    """

    missing: float
    edges: tuple[float, ...]
    words: tuple[str, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Skew:
    """How far live values of one input are from the recorded ones. Immutable.

    Attributes:
        drift: The Jensen-Shannon divergence of their shares, from 0 (the same) to 1.
        out_of_range: Which share of the numbers is below or above all recorded ones.
        missing: Which share is missing, beyond the share that was when recorded.

    """

    drift: float
    out_of_range: float
    missing: float


def describe(values: Iterable[Value]) -> InputStatistics:
    """Returns the figures of one input.

    Raises:
        InvalidArgument: No value is there, or strings are among numbers.

    """
    found = list(values)
    present = [each for each in found if not _is_missing(each)]
    if not present:
        raise InvalidArgument("statistics need values that are not missing")
    missing = 1 - len(present) / len(found)
    words = [each for each in present if isinstance(each, str)]
    if words:
        if len(words) != len(present):
            raise InvalidArgument(
                "statistics are of numbers or of strings, not of both"
            )
        kept = tuple(word for word, _ in Counter(words).most_common(_MAX_WORDS))
        return InputStatistics(missing, (), kept, _shares((), kept, present))
    ordered = sorted(float(each) for each in present)
    last = len(ordered) - 1
    edges = tuple(
        sorted({ordered[last * num // _NUM_BINS] for num in range(_NUM_BINS + 1)})
    )
    return InputStatistics(missing, edges, (), _shares(edges, (), present))


def skew(recorded: InputStatistics, values: Iterable[Value]) -> Skew:
    """Returns how far live values are from the recorded ones."""
    live = list(values)
    present = [each for each in live if not _is_missing(each)]
    missing = 1 - len(present) / len(live) if live else 0.0
    beyond = max(0.0, missing - recorded.missing)
    if not present:
        return Skew(0.0, 0.0, beyond)
    numbers = [each for each in present if not isinstance(each, str)]
    outside = 0
    if recorded.edges:
        low, high = recorded.edges[0], recorded.edges[-1]
        outside = sum(not low <= each <= high for each in numbers)
    shares = _shares(recorded.edges, recorded.words, present)
    drift = _divergence(recorded.shares, shares)
    return Skew(drift, outside / len(present), beyond)


def to_json(inputs: Mapping[str, InputStatistics]) -> str:
    """Returns the text of ``statistics.json``."""
    return json.dumps({name: asdict(each) for name, each in inputs.items()}, indent=1)


def read_statistics(path: str) -> dict[str, InputStatistics]:
    """Reads such a file; blocks.

    Raises:
        NotFound: It is not there.
        DataLoss: It cannot be read, or is not such a file.

    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {name: _read(each) for name, each in found.items()}
    except FileNotFoundError:
        raise NotFound(f"no statistics of inputs: {path}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLoss(f"{path}: no statistics of inputs: {error}") from error


def _read(found: Mapping[str, Any]) -> InputStatistics:
    read = InputStatistics(
        float(found["missing"]),
        tuple(map(float, found["edges"])),
        tuple(map(str, found["words"])),
        tuple(map(float, found["shares"])),
    )
    if len(read.shares) != _num_shares(read.edges, read.words):
        raise ValueError("the shares are not those of the edges or words")
    return read


def _num_shares(edges: tuple[float, ...], words: tuple[str, ...]) -> int:
    """Returns one share for each, one for what lies below or is no word, one above."""
    return len(edges) + 2 if edges else len(words) + 1


def _is_missing(value: Value) -> bool:
    return not value if isinstance(value, str) else not math.isfinite(value)


def _shares(
    edges: tuple[float, ...], words: tuple[str, ...], present: list[Value]
) -> tuple[float, ...]:
    """Returns which share lies below, at, between and above the edges, or is each word."""
    nums = [0] * _num_shares(edges, words)
    place = {word: index for index, word in enumerate(words)}
    for each in present:
        if isinstance(each, str) or not edges:
            nums[place.get(str(each), -1)] += 1
        elif each < edges[0]:
            nums[0] += 1
        else:
            nums[bisect.bisect_left(edges, each) + 1] += 1
    return tuple(num / len(present) for num in nums)


def _divergence(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    total = 0.0
    for p, q in zip(one, other, strict=True):
        for share in (p, q):
            if share:
                total += share * math.log2(2 * share / (p + q)) / 2
    return min(1.0, max(0.0, total))
