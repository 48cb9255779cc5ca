"""The figures of a model's inputs, and how far others are from them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tfs.core.errors import DataLoss, InvalidArgument, NotFound
from tfs.core.version.input_statistics import (
    Skew,
    describe,
    read_statistics,
    skew,
    to_json,
)

NUMBERS = [float(num) for num in range(1000)]


def test_the_same_values_have_no_skew() -> None:
    """Neither numbers nor strings, missing ones among them."""
    cases: list[list[float | str]] = [
        [*NUMBERS, math.nan],
        ["a", "b", "b", ""],
        [str(num) for num in NUMBERS],
    ]
    for values in cases:
        assert skew(describe(values), values) == Skew(0.0, 0.0, 0.0)


def test_values_that_share_nothing_drift_by_one() -> None:
    """Numbers beyond all recorded ones are out of range; strings have no range."""
    above = [each + 1e6 for each in NUMBERS]
    assert skew(describe(NUMBERS), above) == Skew(1.0, 1.0, 0.0)
    assert skew(describe([5.0]), [4.0]) == Skew(1.0, 1.0, 0.0)
    assert skew(describe(["a"] * 9), ["b"] * 9) == Skew(1.0, 0.0, 0.0)


def test_drift_grows_with_the_distance_within_the_range() -> None:
    """Even where nothing is out of range."""
    recorded = describe(NUMBERS)
    some, more = (skew(recorded, NUMBERS[num:]) for num in (200, 800))
    assert 0 < some.drift < more.drift < 1
    assert some.out_of_range == more.out_of_range == 0


def test_only_what_is_missing_beyond_the_recorded_share_counts() -> None:
    """Infinities are missing as well as NaN."""
    recorded = describe([1.0, 2.0, 3.0, math.nan])
    assert skew(recorded, [1.0, math.inf]).missing == 0.25
    assert skew(recorded, [1.0, 2.0, 3.0]).missing == 0.0
    assert skew(recorded, [math.nan]) == Skew(0.0, 0.0, 0.75)


@pytest.mark.parametrize("values", [[], [math.nan], ["", ""], [1.0, "a"]])
def test_values_without_figures_are_refused(values: list[float | str]) -> None:
    """Nothing can be compared with what is missing, or of two kinds."""
    with pytest.raises(InvalidArgument):
        describe(values)


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    """Floats are as they were."""
    found = {"x": describe(NUMBERS), "word": describe(["a", "b", ""])}
    file = tmp_path / "statistics.json"
    file.write_text(to_json(found))
    assert read_statistics(str(file)) == found


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', '{"x": {"missing": 0}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    """So is one that is not there."""
    file = tmp_path / "statistics.json"
    file.write_text(text)
    with pytest.raises(DataLoss, match=file.name):
        read_statistics(str(file))
    with pytest.raises(NotFound, match="absent"):
        read_statistics(str(tmp_path / "absent"))
