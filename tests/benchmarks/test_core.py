"""The core area's baseline."""

from __future__ import annotations

from tests.benchmarks import core


def test_baseline_counts_references() -> None:
    """What is compared does the same work."""
    locked = core.filled_locked_map()
    entry = locked.acquire("m3")
    assert (entry.servable, entry.num_references) == ("m3/1", 1)
    entry.release()
    assert entry.num_references == 0
    with core.filled_map().acquire("m3") as servable:
        assert servable == "m3/1"
