"""Versions on their way carry a payload or an error, never both."""

from __future__ import annotations

import pytest

from tfs.core.errors import NotFound
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData

ID = ServableId("a", 1)


def test_data_carries_a_payload() -> None:
    """A healthy version has what to load it from.

    servable_data_test: NoError, StaticCreateNoError.
    """
    data = ServableData(ID, "path")
    assert (data.id, data.payload, data.error) == (ID, "path", None)


def test_data_carries_an_error() -> None:
    """A source may aspire a version that cannot be loaded.

    servable_data_test: Error.
    """
    error = NotFound("no files")
    data: ServableData[str] = ServableData(ID, None, error)
    assert (data.payload, data.error) == (None, error)


def test_data_carries_exactly_one_of_the_two() -> None:
    """Neither or both would leave a manager guessing."""
    with pytest.raises(ValueError, match="either"):
        ServableData(ID)
    with pytest.raises(ValueError, match="either"):
        ServableData(ID, "path", NotFound("no files"))


def test_an_empty_payload_is_a_payload() -> None:
    """Only None means that there is no payload; "" and 0 are payloads."""
    assert ServableData(ID, "").payload == ""


def test_another_payload_leaves_the_id() -> None:
    """Adapters turn a path into a loader without touching what it is of."""
    assert ServableData(ID, "path").with_payload(3) == ServableData(ID, 3)


def test_a_set_belongs_to_one_name() -> None:
    """A version of another servable in a set is a fault of the source."""
    assert AspiredVersions("a", (ServableData(ID, "x"),)).reason == ""
    with pytest.raises(ValueError, match="doesn't match"):
        AspiredVersions("b", (ServableData(ID, "x"),))
