"""Element types."""

from __future__ import annotations

import copy
import pickle

import pytest

from tfs.core.dtype import DTYPES, FLOAT32, STRING, dtype


def test_a_name_finds_its_type() -> None:
    """Names are those of manifests and of torch."""
    assert dtype("float32") is FLOAT32
    assert all(dtype(name) is each for name, each in DTYPES.items())
    assert all(each.name == name for name, each in DTYPES.items())


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    """Somebody who writes "float" learns what to write."""
    with pytest.raises(ValueError, match=r"'float'.*float32"):
        dtype("float")


def test_there_is_one_object_per_type() -> None:
    """Comparison by ``is`` survives pickling and copying."""
    for each in DTYPES.values():
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each


def test_sizes_are_those_of_the_names() -> None:
    """The digits in a name are its bits; only strings have no size."""
    for each in DTYPES.values():
        digits = "".join(c for c in each.name.partition("_")[0] if c.isdigit())
        if digits:
            assert each.item_bytes * 8 == int(digits)
    assert STRING.item_bytes == 0
    assert str(FLOAT32) == repr(FLOAT32) == "float32"
