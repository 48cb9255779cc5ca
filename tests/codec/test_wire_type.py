"""The table of dtypes and their wire forms."""

from __future__ import annotations

import pytest

from tests.codec.samples import DATA, FIELDS
from tfs.codec.tensor import BY_DTYPE, BY_NUMBER, wire_type
from tfs.core.dtype import DTYPES
from tfs.core.errors import InvalidArgument


def test_every_dtype_of_the_core_travels() -> None:
    """A dtype added to the core without a wire form is noticed here."""
    assert set(BY_DTYPE) == set(DTYPES.values()) == set(DATA) == set(FIELDS)


def test_the_table_is_tensorflows() -> None:
    """Numbers and fields as TensorFlow documents them; none is used twice."""
    assert len(BY_NUMBER) == len(BY_DTYPE)
    for dtype, (number, field, _) in FIELDS.items():
        assert wire_type(number) is BY_DTYPE[dtype]
        assert BY_DTYPE[dtype].field == field


def test_an_unknown_number_is_refused_by_its_name_if_it_has_one() -> None:
    """DT_QINT8 says more than 11."""
    with pytest.raises(InvalidArgument, match="dtype DT_QINT8 is not supported"):
        wire_type(11)
    with pytest.raises(InvalidArgument, match="dtype 4711 is not supported"):
        wire_type(4711)
