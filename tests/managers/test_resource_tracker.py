"""Reservations against a total, as TensorFlow Serving's tracker and with peaks."""

from __future__ import annotations

import pytest

from managers.loading.load_admission import ResourceTracker
from tests.core.resource_text import parse
from tfs.core.errors import InvalidArgument
from tfs.core.resources import Devices, ResourceAllocation

DEVICES = Devices({"main": 1, "gpu": 2})
TOTAL = "main:0/ram=16, gpu:0/ram=16, gpu:1/ram=16"


def tracker(total: str = TOTAL) -> ResourceTracker:
    return ResourceTracker(parse(total), DEVICES)


def test_unbound_total_is_refused() -> None:
    """What there is must lie somewhere (UnboundTotalResources)."""
    with pytest.raises(InvalidArgument, match="total_resources must be bound"):
        tracker("gpu/ram=16")


def test_total_is_normalized() -> None:
    """The only instance need not be named (UnnormalizedTotalResources)."""
    assert tracker("main/ram=16").total == parse("main:0/ram=16")


@pytest.mark.parametrize(
    ("used", "wanted", "after"),
    [
        ("gpu:0/ram=6", "gpu:0/ram=10", "gpu:0/ram=16"),
        ("gpu:0/ram=6", "gpu:0/ram=11", None),
        ("gpu:0/ram=6", "gpu/ram=16", "gpu:0/ram=6, gpu/ram=16"),
        ("gpu/ram=6", "gpu:0/ram=10", "gpu/ram=6, gpu:0/ram=10"),
        ("gpu/ram=6", "gpu:0/ram=11", None),
        ("gpu/ram=6", "gpu/ram=11", None),
    ],
)
def test_reservation_fits_or_changes_nothing(
    used: str, wanted: str, after: str | None
) -> None:
    """What does not fit leaves what is used as it was.

    Upstream: ReserveResourcesSuccessWithUsedResourcesBound,
    ReserveResourcesSuccessWithUsedResourcesUnbound,
    ReserveResourcesFailureWithUsedResourcesBound and
    ReserveResourcesFailureWithUsedResourcesUnbound.
    """
    resources = tracker()
    assert resources.reserve(parse(used))
    assert resources.reserve(parse(wanted)) is (after is not None)
    assert resources.used == parse(after if after is not None else used)


def test_invalid_estimate_is_refused() -> None:
    """A device that is not there is an error, not a lack (InvalidResourceEstimate)."""
    resources = tracker()
    with pytest.raises(InvalidArgument, match="Invalid device tpu"):
        resources.reserve(parse("tpu/ram=1"))
    assert resources.used == parse("")


def test_release_gives_back_what_was_reserved() -> None:
    """Giving back more than was reserved is a fault."""
    resources = tracker()
    resources.reserve(parse("main/ram=9"))
    resources.release(parse("main/ram=9"))
    assert resources.used == parse("")
    with pytest.raises(InvalidArgument, match="was not reserved"):
        resources.release(parse("main/ram=1"))


def test_peak_is_charged_to_ram_until_the_estimate_falls() -> None:
    """A load must fit with its transient peak; afterwards the peak is free again."""
    resources = ResourceTracker.ram(100)
    loading = ResourceAllocation.ram(40, 50)
    assert resources.reserve(loading)
    assert not resources.reserve(ResourceAllocation.ram(20))
    loaded = resources.replace(loading, ResourceAllocation.ram(40))
    assert loaded == ResourceAllocation.ram(40)
    assert resources.reserve(ResourceAllocation.ram(60))
    assert not resources.reserve(ResourceAllocation.ram(1))


def test_peak_is_its_own_resource_where_the_total_has_one() -> None:
    """A total that limits peaks limits them by themselves."""
    resources = tracker("main/ram_in_bytes=10, main/peak_ram_in_bytes=5")
    assert resources.reserve(ResourceAllocation.ram(10, 5))
    assert not resources.reserve(ResourceAllocation.ram(0, 1))


def test_what_was_measured_counts_although_it_is_more_than_there_is() -> None:
    """Nothing is let in beside it until it is released; nonsense changes nothing."""
    resources = ResourceTracker.ram(100)
    before = ResourceAllocation.ram(50)
    assert resources.reserve(before)
    assert resources.replace(before, parse("tpu/ram=1")) == before
    assert resources.used == before
    measured = ResourceAllocation.ram(30, 90)
    assert resources.replace(before, measured) == measured
    assert resources.used == ResourceAllocation.ram(120)
    assert not resources.reserve(ResourceAllocation.ram(1))
    resources.release(measured)
    assert resources.reserve(ResourceAllocation.ram(100))


def test_what_can_never_fit_is_known_beforehand() -> None:
    """A load larger than the total need not wait for others to end."""
    resources = ResourceTracker.ram(100)
    resources.reserve(ResourceAllocation.ram(90))
    assert resources.can_ever_fit(ResourceAllocation.ram(100))
    assert not resources.can_ever_fit(ResourceAllocation.ram(60, 41))
