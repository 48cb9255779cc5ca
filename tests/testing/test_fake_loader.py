"""The fake loader catches the faults it is there for."""

from __future__ import annotations

import pytest

from tfs.core.errors import Internal, Unavailable
from tfs.core.servable_id import ServableId
from tfs.testing.fake_loader import FakeLoader, LoaderLog, loaders

ID = ServableId("a", 3)


def test_life_of_a_loader_is_logged() -> None:
    """Loads and unloads are counted, and what is resident at a time."""
    log = LoaderLog()
    loader = FakeLoader(ID, log=log, value="x")
    loader.load(ID)
    servable = loader.servable
    assert (servable.value, servable.is_alive, log.resident) == ("x", True, [ID])
    loader.unload()
    assert not servable.is_alive
    assert log.resident == []
    assert log.events == [("load", ID), ("unload", ID)]
    assert (log.count("load"), log.count("load", ServableId("b", 1))) == (1, 0)
    assert log.max_num_resident == {"a": 1}


def test_errors_come_in_turn() -> None:
    """Each attempt raises its own error; None succeeds."""
    loader = FakeLoader(ID, errors=[Unavailable("1"), Unavailable("2")])
    for expected in ("1", "2"):
        with pytest.raises(Unavailable, match=expected):
            loader.load(ID)
    loader.load(ID)
    with pytest.raises(Internal):
        _ = FakeLoader(ID).servable


def test_breaches_of_the_contract_are_caught() -> None:
    """Loading twice, unloading twice, the wrong id, load after unload."""
    loader = FakeLoader(ID)
    with pytest.raises(AssertionError, match="without being loaded"):
        loader.unload()
    with pytest.raises(AssertionError, match="asked to load"):
        loader.load(ServableId("a", 4))
    loader.load(ID)
    with pytest.raises(AssertionError, match="loaded twice"):
        loader.load(ID)
    loader.unload()
    with pytest.raises(AssertionError, match="after unload"):
        loader.load(ID)
    assert len(loader.breaches) == 4


def test_calls_at_the_same_time_are_caught() -> None:
    """A manager calls one loader from one thread at a time."""
    breaches: list[str] = []

    def call_again() -> None:
        try:
            loader.estimate_resources()
        except AssertionError as error:
            breaches.append(str(error))

    loader = FakeLoader(ID, on_load=call_again)
    loader.load(ID)
    assert breaches == ["a/3: called twice at once"]


def test_estimate_falls_once_loaded() -> None:
    """The peak is part of the estimate until the load is over."""
    loader = FakeLoader(
        ID, ram_bytes=5, peak_bytes=3, estimate_errors=[Unavailable("x")]
    )
    with pytest.raises(Unavailable):
        loader.estimate_resources()
    before = loader.estimate_resources()
    loader.load(ID)
    after = loader.estimate_resources()
    assert before.subtract(after) is not None
    assert before != after


def test_aspired_sets_are_written_briefly() -> None:
    """Numbers, loaders and errors make one set."""
    error = Unavailable("x")
    aspired = loaders("a", 1, FakeLoader(ID), (4, error), reason="why")
    assert [d.id.version for d in aspired.versions] == [1, 3, 4]
    assert aspired.versions[2].error is error
    assert aspired.reason == "why"
