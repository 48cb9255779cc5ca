"""Requests name a version, or a rule to choose one."""

from __future__ import annotations

import pytest

from tfs.core.servable_request import Choice, ServableRequest


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ServableRequest.specific("a", 5), "Specific(a, 5)"),
        (ServableRequest.latest("a"), "Latest(a)"),
        (ServableRequest.earliest("a"), "Earliest(a)"),
        (ServableRequest.specific("a", 0), "Specific(a, 0)"),
    ],
)
def test_a_request_prints_as_clients_see_it(
    request_: ServableRequest, text: str
) -> None:
    """The text appears in NOT_FOUND messages that clients match on.

    manager_test: ServableRequest Specific, Latest, FromId.
    """
    assert str(request_) == text


def test_a_request_for_an_id_is_a_specific_one() -> None:
    """An id asks for exactly its version; without one, latest is meant."""
    assert ServableRequest.specific("a", 2) == ServableRequest("a", 2)
    assert ServableRequest("a").choice is Choice.LATEST
