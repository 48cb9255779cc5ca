"""The algebra of allocations: upstream's cases as tables, the laws by hypothesis."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.resource_text import parse
from tfs.core.errors import InvalidArgument
from tfs.core.resources import Devices, Resource, ResourceAllocation

DEVICES = Devices({"main": 1, "gpu": 2})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", None),
        ("main:0/ram=1, gpu:1/ram=2, gpu/ram=3", None),
        ("tpu/ram=1", "Invalid resource allocation: Invalid device tpu"),
        ("main:1/ram=1", "Invalid resource allocation: Invalid device instance main:1"),
        ("gpu:2/ram=1", "Invalid resource allocation: Invalid device instance gpu:2"),
    ],
)
def test_validity_is_devices_and_instances_that_exist(
    text: str, error: str | None
) -> None:
    """Unknown devices and instances are named (VerifyValidity, VerifyResourceValidity)."""
    if error is None:
        DEVICES.verify(parse(text))
        return
    with pytest.raises(InvalidArgument, match=re.escape(error)):
        DEVICES.verify(parse(text))


def test_repeated_resource_is_refused() -> None:
    """One entry per resource (VerifyValidity)."""
    with pytest.raises(InvalidArgument, match="Repeated resource"):
        parse("main:0/ram=1, main:0/ram=2")


def test_negative_quantity_is_refused() -> None:
    """Quantities are never below zero."""
    with pytest.raises(InvalidArgument, match="negative"):
        parse("main:0/ram=-1")


@pytest.mark.parametrize("kind", ["ram", "slots"])
def test_other_devices_have_their_own_validity(kind: str) -> None:
    """What exists is what a Devices was made with (OverrideDeviceValidity)."""
    allocation = ResourceAllocation({Resource("tpu", kind, 7): 1})
    Devices({"tpu": 8}).verify(allocation)
    with pytest.raises(InvalidArgument):
        Devices({"tpu": 7}).verify(allocation)
    with pytest.raises(ValueError, match="at least one"):
        Devices({"tpu": 0})


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("main:0/ram=4", "main:0/ram=4"),
        ("main/ram=4", "main:0/ram=4"),
        ("main/ram=4, main:0/ram=3", "main:0/ram=7"),
        ("gpu/ram=4, main/slots=2", "gpu/ram=4, main:0/slots=2"),
        ("gpu:0/ram=0, main:0/ram=4", "main:0/ram=4"),
    ],
)
def test_normal_form_binds_where_there_is_one_instance(text: str, normal: str) -> None:
    """Zeros vanish, the only instance is named (Normalize)."""
    assert DEVICES.normalize(parse(text)) == parse(normal)


@pytest.mark.parametrize(
    ("text", "is_bound"),
    [
        ("", True),
        ("main:0/ram=1", True),
        ("gpu/ram=1", False),
        ("main:0/ram=1, gpu/ram=1", False),
    ],
)
def test_bound_means_that_every_entry_names_its_instance(
    text: str, is_bound: bool
) -> None:
    """One unbound entry makes the whole unbound (IsBound)."""
    assert parse(text).is_bound is is_bound


def test_resource_can_be_bound() -> None:
    """Binding keeps device and kind (CreateBoundResource)."""
    assert Resource("gpu", "ram").bound_to(1) == Resource("gpu", "ram", 1)
    assert not Resource("gpu", "ram").is_bound


def test_quantity_of_an_absent_resource_is_zero() -> None:
    """Reading needs no check first (GetQuantity, SetQuantity)."""
    allocation = parse("gpu:1/ram=5")
    assert allocation[Resource("gpu", "ram", 1)] == 5
    assert allocation[Resource("gpu", "ram", 0)] == 0
    assert allocation[Resource("gpu", "ram")] == 0


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        ("", "", ""),
        ("main:0/ram=1", "", "main:0/ram=1"),
        ("main:0/ram=1, gpu:0/ram=2", "gpu:0/ram=3", "main:0/ram=1, gpu:0/ram=5"),
        ("gpu:0/ram=2", "gpu/ram=3", "gpu:0/ram=2, gpu/ram=3"),
        ("gpu/ram=2, gpu:1/ram=1", "gpu/ram=3", "gpu/ram=5, gpu:1/ram=1"),
    ],
)
def test_sum_is_taken_entry_by_entry(left: str, right: str, total: str) -> None:
    """Bound and unbound entries stay apart (AddEmpty, AddBasic, AddBoundAndUnbound)."""
    assert parse(left) + parse(right) == parse(total)


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        ("", "", ""),
        ("main:0/ram=4", "", "main:0/ram=4"),
        ("main:0/ram=4, gpu:0/ram=2", "gpu:0/ram=1", "main:0/ram=4, gpu:0/ram=1"),
        ("main:0/ram=4", "main:0/ram=4", ""),
        ("gpu/ram=4, gpu:0/ram=4", "gpu/ram=1", "gpu/ram=3, gpu:0/ram=4"),
        ("main:0/ram=4", "main:0/ram=5", None),
        ("main:0/ram=4", "gpu:0/ram=1", None),
        ("gpu:0/ram=4", "gpu/ram=1", None),
    ],
)
def test_difference_never_goes_below_zero(
    left: str, right: str, rest: str | None
) -> None:
    """There is none then, and nothing changed.

    SubtractEmpty, SubtractBasic, SubtractNegativeResult, SubtractNormalizeOutput upstream.
    """
    before = parse(left)
    expected = None if rest is None else parse(rest)
    assert before.subtract(parse(right)) == expected
    assert before == parse(left)


@pytest.mark.parametrize(
    ("text", "factor", "product"),
    [
        ("", 3, ""),
        ("main:0/ram=2, gpu/ram=1", 3, "main:0/ram=6, gpu/ram=3"),
        ("main:0/ram=2", 0, ""),
    ],
)
def test_product_scales_every_entry(text: str, factor: int, product: str) -> None:
    """Bound or not; by zero nothing is left (MultiplyEmpty, MultiplyBasic)."""
    assert parse(text) * factor == parse(product)


def test_order_of_entries_does_not_matter() -> None:
    """Equal is equal however it was written (Equal, EqualOrderInsensitive)."""
    left, right = parse("main:0/ram=1, gpu/ram=2"), parse("gpu/ram=2, main:0/ram=1")
    assert left == right
    assert hash(left) == hash(right)
    assert left != parse("main:0/ram=1, gpu:0/ram=2")
    assert left != parse("main:0/ram=1")
    assert parse("main:0/ram=1") != 1


def test_resources_are_equal_by_all_their_parts() -> None:
    """Device, kind and instance all count (ResourcesEqual)."""
    assert Resource("gpu", "ram", 1) == Resource("gpu", "ram", 1)
    assert Resource("gpu", "ram", 1) != Resource("gpu", "ram")
    assert Resource("gpu", "ram") != Resource("gpu", "slots")
    assert Resource("gpu", "ram") != Resource("main", "ram")


@pytest.mark.parametrize(
    ("wanted", "room", "fits"),
    [
        ("", "", True),
        ("", "main:0/ram=1", True),
        ("main:0/ram=1", "", False),
        ("main:0/ram=4", "main:0/ram=4", True),
        ("main:0/ram=5", "main:0/ram=4", False),
        ("main:0/ram=4, gpu:0/ram=1", "main:0/ram=4, gpu:0/ram=1", True),
        ("main:0/ram=4, gpu:0/ram=2", "main:0/ram=9, gpu:0/ram=1", False),
        ("gpu/ram=4", "gpu:0/ram=1, gpu:1/ram=4", True),
        ("gpu/ram=5", "gpu:0/ram=4, gpu:1/ram=4", False),
        ("gpu/ram=2, gpu:0/ram=3", "gpu:0/ram=4, gpu:1/ram=2", True),
        ("gpu/ram=2, gpu:0/ram=3", "gpu:0/ram=4, gpu:1/ram=1", False),
        ("gpu/ram=3, gpu/slots=1", "gpu:0/ram=3, gpu:1/slots=1", True),
        ("main/ram=4", "main:0/ram=4", True),
    ],
)
def test_fitting_is_bound_entries_first_and_then_each_unbound_one(
    wanted: str, room: str, fits: bool
) -> None:
    """An unbound entry needs one instance with enough left.

    LessThanOrEqualEmpty, OneEntry, TwoEntries, ImplicitZero and LessThanOrEqualUnbound
    upstream.
    """
    assert DEVICES.fits(parse(wanted), parse(room)) is fits


def test_room_must_be_bound() -> None:
    """What there is lies somewhere."""
    with pytest.raises(InvalidArgument, match="room must be bound"):
        DEVICES.fits(parse(""), parse("gpu/ram=1"))


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("", ""),
        ("main:0/ram=1, gpu:1/ram=2", "main:0/ram=1, gpu:1/ram=2"),
        ("gpu/ram=2", "gpu:0/ram=2, gpu:1/ram=2"),
        ("gpu/ram=2, gpu:1/ram=3", "gpu:0/ram=2, gpu:1/ram=5"),
        ("main/ram=2", "main:0/ram=2"),
    ],
)
def test_overbinding_assumes_the_worst(text: str, bound: str) -> None:
    """An unbound entry counts on every instance (Overbind)."""
    assert DEVICES.overbind(parse(text)) == parse(bound)


@pytest.mark.parametrize(
    ("left", "right", "larger"),
    [
        ("", "", ""),
        ("main:0/ram=1", "", "main:0/ram=1"),
        (
            "main:0/ram=1, gpu:0/ram=5",
            "main:0/ram=3, gpu:0/ram=2",
            "main:0/ram=3, gpu:0/ram=5",
        ),
        ("gpu/ram=4", "gpu:0/ram=2", "gpu/ram=4, gpu:0/ram=2"),
        ("gpu/ram=4", "gpu/ram=2", "gpu/ram=4"),
    ],
)
def test_maximum_is_taken_entry_by_entry(left: str, right: str, larger: str) -> None:
    """Bound and unbound entries have a maximum each (MaxEmpty, MaxBound)."""
    for one, other in ((left, right), (right, left)):
        assert parse(one).maximum(parse(other)) == parse(larger)


def test_description_is_for_people() -> None:
    """Messages about memory show what takes how much."""
    assert parse("main:0/ram=4").describe() == "main:0/ram=4"
    assert parse("").describe() == "nothing"
    large = ResourceAllocation.ram(3 << 19)
    assert large.describe() == "1.5 MiB"
    assert ResourceAllocation.ram(4, 8 << 10).describe() == (
        "4 bytes and 8.0 KiB more at its peak"
    )
    mixed = parse("gpu:1/ram_in_bytes=1024, gpu:1/slots=2, main:0/ram_in_bytes=1")
    assert mixed.describe() == "1.0 KiB of gpu:1 and gpu:1/slots=2 and 1 bytes"


resources = st.builds(
    Resource,
    st.sampled_from(("main", "gpu")),
    st.sampled_from(("ram", "slots")),
    st.one_of(st.none(), st.just(0)),
)
allocations = st.dictionaries(resources, st.integers(0, 9), max_size=6).map(
    ResourceAllocation
)


@given(allocations, allocations, allocations)
def test_addition_is_commutative_and_associative(
    a: ResourceAllocation, b: ResourceAllocation, c: ResourceAllocation
) -> None:
    """In whatever order loads are counted, the sum is the same."""
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)


@given(allocations, allocations)
def test_subtraction_undoes_addition(
    a: ResourceAllocation, b: ResourceAllocation
) -> None:
    """What was reserved can be given back exactly."""
    assert (a + b).subtract(b) == a


@given(allocations, allocations)
def test_what_fits_still_fits_into_more(
    wanted: ResourceAllocation, room: ResourceAllocation
) -> None:
    """More room never makes a load fail."""
    room = DEVICES.overbind(room)
    more = room + parse("main:0/ram=1, gpu:0/ram=1")
    if DEVICES.fits(wanted, room):
        assert DEVICES.fits(wanted, more)


@given(allocations)
def test_overbound_room_always_fits_its_allocation(a: ResourceAllocation) -> None:
    """The worst case covers every way of binding, entry by entry."""
    unbound = ResourceAllocation((r, q) for r, q in a.items() if not r.is_bound)
    assert DEVICES.fits(unbound, DEVICES.overbind(a))


@given(allocations)
def test_normalizing_twice_is_normalizing_once(a: ResourceAllocation) -> None:
    """The normal form is one (AddNormalizeOutput)."""
    normal = DEVICES.normalize(a)
    assert DEVICES.normalize(normal) == normal
