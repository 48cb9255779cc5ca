"""A storage path is a value."""

from __future__ import annotations

from sources.servable_to_monitor import StoragePath
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData


def test_data_over_paths_compares_by_value() -> None:
    """Two findings of the same files are equal; other files are something else.

    storage_path_test: ServableDataEquality.
    """
    a = ServableData(ServableId("s", 1), StoragePath("/s/1", "f"))
    assert a == ServableData(ServableId("s", 1), StoragePath("/s/1", "f"))
    assert a != ServableData(ServableId("s", 1), StoragePath("/s/1", "g"))
    assert a != ServableData(ServableId("s", 1), StoragePath("/other/1", "f"))
    assert a != ServableData(ServableId("s", 2), StoragePath("/s/1", "f"))
