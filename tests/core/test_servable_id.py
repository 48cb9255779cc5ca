"""Identifiers are values that order and print as clients expect."""

from __future__ import annotations

import pytest

from tfs.core.servable_id import ServableId


def test_ids_are_equal_by_name_and_version() -> None:
    """Same name and version, same id, same hash.

    servable_id_test: Equals, NotEquals.
    """
    assert ServableId("a", 1) == ServableId("a", 1)
    assert hash(ServableId("a", 1)) == hash(ServableId("a", 1))
    assert ServableId("a", 1) != ServableId("a", 2)
    assert ServableId("a", 1) != ServableId("b", 1)


def test_ids_order_by_name_then_version() -> None:
    """Versions order as numbers, not as texts.

    servable_id_test: LessThan.
    """
    ids = [ServableId("b", 1), ServableId("a", 10), ServableId("a", 9)]
    assert sorted(ids) == [ServableId("a", 9), ServableId("a", 10), ServableId("b", 1)]


def test_an_id_prints_as_clients_see_it() -> None:
    """The text appears in error messages that clients match on."""
    assert str(ServableId("digits", 3)) == "{name: digits version: 3}"
    assert ServableId("digits", 3).slashed == "digits/3"


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a", -1)])
def test_an_impossible_id_is_refused(name: str, version: int) -> None:
    """A servable has a name, and versions start at 0."""
    with pytest.raises(ValueError, match=r"name|version"):
        ServableId(name, version)
