"""Routers send every name to one port."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sources.router import (
    NO_ROUTE,
    DynamicSourceRouter,
    SourceRouter,
    StaticSourceRouter,
)
from tests.core.conformance import TARGET_CHECKS, TargetCheck, check_name
from tfs.core.errors import InvalidArgument
from tfs.core.source import AspiredVersions, Target
from tfs.testing.recording_target import RecordingTarget


def aspired(name: str) -> AspiredVersions[str]:
    return AspiredVersions(name, ())


def connect_all(router: SourceRouter[str]) -> list[RecordingTarget[str]]:
    targets: list[RecordingTarget[str]] = [
        RecordingTarget() for _ in router.output_ports
    ]
    for port, target in zip(router.output_ports, targets, strict=True):
        port.set_aspired_versions_callback(target.aspired_versions_callback())
    return targets


def routed(router: SourceRouter[str], *names: str) -> list[list[str]]:
    """Returns the names that reach each port."""
    targets = connect_all(router)
    for name in names:
        router.aspired_versions_callback()(aspired(name))
    return [[call.name for call in target.calls] for target in targets]


def test_a_call_goes_to_the_port_its_route_names() -> None:
    """Every name reaches exactly one port.

    source_router_test: Basic, NumPorts.
    """
    router: SourceRouter[str] = SourceRouter(2, lambda a: int(a.name == "b"))
    assert routed(router, "a", "b", "c") == [["a", "c"], ["b"]]


def test_a_call_without_a_route_is_discarded() -> None:
    """No route means that nobody hears of it.

    source_router_test: DiscardRequest.
    """
    router: SourceRouter[str] = SourceRouter(
        1, lambda a: NO_ROUTE if a.name == "a" else 0
    )
    assert routed(router, "a", "b") == [["b"]]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_route_to_no_port_is_refused(index: int) -> None:
    """Upstream's -1 for "no route" must not reach the last port unnoticed."""
    router: SourceRouter[str] = SourceRouter(2, lambda _: index)
    with pytest.raises(InvalidArgument, match=f"Port number out of range: {index}"):
        routed(router, "a")


@pytest.mark.parametrize("num_connected", [0, 1])
def test_a_call_blocks_until_all_ports_are_connected(num_connected: int) -> None:
    """A router that is wired up in part holds calls back, also for connected ports.

    source_router_test: SetAspiredVersionsBlocksUntilAllTargetsConnected_1, _2.
    """
    router: SourceRouter[str] = SourceRouter(2, lambda _: 0)
    targets: list[RecordingTarget[str]] = [RecordingTarget(), RecordingTarget()]
    for index in range(num_connected):
        router.output_ports[index].set_aspired_versions_callback(
            targets[index].aspired_versions_callback()
        )
    thread = threading.Thread(
        target=router.aspired_versions_callback(), args=(aspired("a"),)
    )
    thread.start()
    assert targets[0].calls == []
    for index in range(num_connected, 2):
        router.output_ports[index].set_aspired_versions_callback(
            targets[index].aspired_versions_callback()
        )
    thread.join(20)
    assert [call.name for call in targets[0].calls] == ["a"]


def test_closing_frees_a_call_that_waits_for_ports() -> None:
    """A router that is taken down half-wired leaves no thread behind."""
    router: SourceRouter[str] = SourceRouter(2, lambda _: 0)
    thread = threading.Thread(
        target=router.aspired_versions_callback(), args=(aspired("a"),)
    )
    thread.start()
    router.close()
    thread.join(20)
    assert not thread.is_alive()


def test_a_router_needs_a_port() -> None:
    """A router without outputs is a mistake."""
    with pytest.raises(InvalidArgument, match="port"):
        SourceRouter(0, lambda _: 0)


def test_the_first_substring_in_the_name_wins() -> None:
    """Names without any of the substrings go to the last port.

    static_source_router_test: Basic.
    """
    router: StaticSourceRouter[str] = StaticSourceRouter(["cat", "dog"])
    assert routed(router, "dogcat", "hotdog", "bird") == [
        ["dogcat"],
        ["hotdog"],
        ["bird"],
    ]


def test_the_table_decides_and_the_rest_goes_to_the_last_port() -> None:
    """Names are routed whole, not by parts.

    dynamic_source_router_test: Basic.
    """
    router: DynamicSourceRouter[str] = DynamicSourceRouter(3, {"foo": 0, "bar": 1})
    assert routed(router, "foo", "bar", "foobar") == [["foo"], ["bar"], ["foobar"]]


def test_a_new_table_holds_from_then_on() -> None:
    """Routes can be swapped while the router runs.

    dynamic_source_router_test: Reconfigure.
    """
    router: DynamicSourceRouter[str] = DynamicSourceRouter(3, {"foo": 0, "bar": 1})
    targets = connect_all(router)
    take = router.aspired_versions_callback()
    take(aspired("foo"))
    router.update_routes({"foo": 1, "bar": 0})
    take(aspired("foo"))
    take(aspired("bar"))
    names = [[call.name for call in target.calls] for target in targets]
    assert names == [["foo", "bar"], ["foo"], []]


@pytest.mark.parametrize(
    ("port_index", "message"),
    [
        (-1, "Port number out of range: -1"),
        (3, "Port number out of range: 3"),
        (2, "Last port cannot be used in route map"),
    ],
)
def test_a_bad_table_is_refused_and_the_old_one_stays(
    port_index: int, message: str
) -> None:
    """Routes lie in range and never name the default port.

    dynamic_source_router_test: InvalidRouteMap, ReconfigureToInvalidRouteMap.
    """
    with pytest.raises(InvalidArgument, match=message):
        DynamicSourceRouter(3, {"foo": port_index})
    router: DynamicSourceRouter[str] = DynamicSourceRouter(3, {"foo": 1})
    with pytest.raises(InvalidArgument, match=message):
        router.update_routes({"foo": 0, "bar": port_index})
    assert router.routes == {"foo": 1}
    assert routed(router, "foo") == [[], ["foo"], []]


@pytest.mark.parametrize("check", TARGET_CHECKS, ids=check_name)
def test_a_router_is_a_target(check: TargetCheck) -> None:
    """Sources may call it from several threads, and after it was closed."""

    def make() -> tuple[Target[object], Callable[[], object]]:
        router: SourceRouter[object] = SourceRouter(2, lambda a: int(a.name == "s1"))
        for port in router.output_ports:
            port.set_aspired_versions_callback(lambda _: None)
        return router, router.close

    check(make)
