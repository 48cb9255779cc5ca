"""Manifests with something wrong: refused in words, or read."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfs.core.errors import DataLoss
from tfs.core.version.manifest import Manifest

GOOD: Final[dict[str, Any]] = {
    "format": 1,
    "platform": "torch_package",
    "files": {"model.pt": {"size_bytes": 16, "sha256": "6b1d"}},
    "entry": {"package": "model", "resource": "model.pkl"},
    "signatures": {
        "serving_default": {
            "method": "classify",
            "inputs": {
                "x": {"dtype": "float32", "shape": [-1, 2]},
                "z": {"dtype": "int64", "shape": [-1, -1], "pad": 0, "mask": "m"},
                "m": {"dtype": "bool", "shape": [-1, -1]},
            },
            "outputs": {"scores": {"dtype": "float32", "shape": [-1, 2]}},
            "defaults": {"z": {"dtype": "int64", "shape": [1, 1], "value": "AAAAAAAAAAA="}},
            "labels": ["a", "b"],
            "features": {
                "p": {
                    "input": "x", "kind": "fixed", "dtype": "float32", "shape": [2],
                    "default": [1.0, 2.0],
                },
                "v": {"input": "z", "kind": "varlen", "dtype": "int64", "pad": 0},
            },
            "example": {"x": {"shape": [2, 2], "offset": 0}},
            "batched": True,
        }
    },
    "producer": {"tfs": "", "torch": "2", "created": "now"},
}  # fmt: skip
ODD: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, float("inf"), float("nan"), 1 << 63, 10**400),
    *("", "x", "\0", "../x", "/etc/passwd", "\ud800", "float32", "string", "complex64"),
    *([], [1], [[]], [None], [1 << 70], {}, {"x": 1}),
)


def places(form: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the way to every value but the whole."""
    items: Any = ()
    if isinstance(form, dict):
        items = form.items()
    elif isinstance(form, list):
        items = enumerate(form)
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def damaged(seed: int) -> str:
    """Replaces or drops one value, or two."""
    rng = random.Random(seed)
    form = copy.deepcopy(GOOD)
    for _ in range(rng.choice((0, 1, 1, 2))):
        *way, last = rng.choice([*places(form)])
        inside: Any = form
        for key in way:
            inside = inside[key]
        if rng.random() < 0.2:
            del inside[last]
        else:
            inside[last] = rng.choice(ODD)
    return json.dumps(form)


@given(st.integers(0, 1 << 32))
@settings(max_examples=400, deadline=None)
def test_a_damaged_manifest_is_read_or_refused(seed: int) -> None:
    """One that is read is written again, and read back equal."""
    with contextlib.suppress(DataLoss):
        manifest = Manifest.from_json(damaged(seed), "here")
        again = Manifest.from_json(manifest.to_json(), "here")
        # As text: what is not a number is never equal to itself.
        assert again.to_json() == manifest.to_json()


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("files", "model.pt", "size_bytes"), float("inf")),
        (
            ("signatures", "serving_default", "outputs", "scores", "shape"),
            [-1, 1 << 63],
        ),
    ],
)
def test_numbers_that_nothing_holds_are_refused(
    way: tuple[str, ...], value: object
) -> None:
    """No file is that long, and no dimension can be told to a client."""
    *before, last = way
    form = copy.deepcopy(GOOD)
    inside = form
    for key in before:
        inside = inside[key]
    inside[last] = value
    with pytest.raises(DataLoss, match="here"):
        Manifest.from_json(json.dumps(form), "here")


def test_a_key_that_is_there_twice_is_refused() -> None:
    """Which of both was meant, nobody can tell."""
    text = json.dumps(GOOD).replace('"platform":', '"platform": "python", "platform":')
    with pytest.raises(DataLoss, match="here: the key 'platform' is there twice"):
        Manifest.from_json(text, "here")
