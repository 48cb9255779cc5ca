"""The two clients offer the same calls, so that changing from one to the other is easy."""

from __future__ import annotations

import inspect

import pytest

from tfs.client.aio import AsyncClient
from tfs.client.client import Client

CALLS = sorted(
    name
    for name, member in vars(Client).items()
    if inspect.isfunction(member) and not name.startswith("_") and name != "close"
)


def test_both_clients_have_the_same_public_names() -> None:
    """Whatever one can do the other can do, under the same name."""
    public = [
        {name for name in vars(each) if not name.startswith("_")}
        for each in (Client, AsyncClient)
    ]
    assert public[0] == public[1]
    assert {"predict", "classify", "regress", "metadata", "status"} <= {*CALLS}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_the_same_but_for_being_awaited(name: str) -> None:
    """Parameters, defaults, result and explanation agree; only one is a coroutine."""
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert inspect.getdoc(blocking) == inspect.getdoc(awaited)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.iscoroutinefunction(awaited)
