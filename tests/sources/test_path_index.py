"""A changed path finds the servables it concerns."""

from __future__ import annotations

import gc

import pytest

from sources.path_index import PathIndex

INDEX = PathIndex({"a": "/m/a", "b": "/m/b/", "twin": "/m/a", "deep": "/m/a/deep"})


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/m/a", {"a", "twin", "deep"}),
        ("/m/a/1", {"a", "twin"}),
        ("/m/a/1/model.pt", {"a", "twin"}),
        ("/m/a/deep/1", {"a", "twin", "deep"}),
        ("/m/b", {"b"}),
        ("/m/b/", {"b"}),
        ("/m", {"a", "b", "twin", "deep"}),
        ("/", {"a", "b", "twin", "deep"}),
        ("/m/c", set()),
        ("/m/ab", set()),
        ("/elsewhere/m/a", set()),
    ],
)
def test_a_path_concerns_what_lies_at_above_or_below_it(
    path: str, names: set[str]
) -> None:
    """Names are found by whole path components, in both directions."""
    assert set(INDEX.find(path)) == names


def test_the_names_of_one_path_are_nothing_for_the_collector() -> None:
    """Of tens of thousands of models, it visited each one's list in every collection."""
    index = PathIndex({f"m{number}": f"/models/m{number}" for number in range(3)})
    gc.collect()
    assert index.find("/models/m1") == ["m1"]
    assert not any(map(gc.is_tracked, index._at.values()))
