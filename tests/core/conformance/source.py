"""What every source, target and source adapter promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import pytest

from tests.threads import run_together
from tfs.core.errors import DataLoss
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData, Source, SourceAdapter, Target
from tfs.testing.patience import PATIENCE_S
from tfs.testing.recording_target import RecordingTarget


class SourceUnderTest(Protocol):
    """A source, and the means to make it speak."""

    @property
    def source(self) -> Source[object]:
        """The source, not connected yet."""
        ...

    def trigger(self) -> None:
        """Makes the source call its target, if it is connected; blocks for it."""
        ...

    def close(self) -> None:
        """Closes the source; after that it is silent, triggered or not."""
        ...


MakeSource = Callable[[], SourceUnderTest]
SourceCheck = Callable[[MakeSource], None]


def a_source_calls_only_after_it_is_connected(make: MakeSource) -> None:
    """Before there is a target nothing is said, and nothing is lost."""
    under_test = make()
    try:
        under_test.trigger()
        target: RecordingTarget[object] = RecordingTarget()
        under_test.source.set_aspired_versions_callback(
            target.aspired_versions_callback()
        )
        under_test.trigger()
        assert target.wait_for(lambda calls: len(calls) > 0, PATIENCE_S)
    finally:
        under_test.close()


def a_second_callback_is_refused(make: MakeSource) -> None:
    """One source has one target; the first one stays."""
    under_test = make()
    first: RecordingTarget[object] = RecordingTarget()
    second: RecordingTarget[object] = RecordingTarget()
    try:
        under_test.source.set_aspired_versions_callback(
            first.aspired_versions_callback()
        )
        with pytest.raises(RuntimeError):
            under_test.source.set_aspired_versions_callback(
                second.aspired_versions_callback()
            )
        under_test.trigger()
        assert first.wait_for(lambda calls: len(calls) > 0, PATIENCE_S)
        assert second.calls == []
    finally:
        under_test.close()


def a_call_carries_one_name_and_says_why(make: MakeSource) -> None:
    """Every version of a call belongs to its name, each once, with a reason."""
    under_test = make()
    target: RecordingTarget[object] = RecordingTarget()
    try:
        under_test.source.set_aspired_versions_callback(
            target.aspired_versions_callback()
        )
        under_test.trigger()
        assert target.wait_for(lambda calls: len(calls) > 0, PATIENCE_S)
        for call in target.calls:
            ids = [data.id for data in call.versions]
            assert {i.name for i in ids} <= {call.name}
            assert len(set(ids)) == len(ids)
            assert call.reason
    finally:
        under_test.close()


def a_closed_source_is_silent(make: MakeSource) -> None:
    """After close no call comes."""
    under_test = make()
    target: RecordingTarget[object] = RecordingTarget()
    under_test.source.set_aspired_versions_callback(target.aspired_versions_callback())
    under_test.close()
    target.take()
    under_test.trigger()
    assert target.calls == []
    under_test.close()


SOURCE_CHECKS: tuple[SourceCheck, ...] = (
    a_source_calls_only_after_it_is_connected,
    a_second_callback_is_refused,
    a_call_carries_one_name_and_says_why,
    a_closed_source_is_silent,
)


def check_source(make: MakeSource) -> None:
    """Runs every check of a source."""
    for check in SOURCE_CHECKS:
        check(make)


# -- targets -------------------------------------------------------------------------

MakeTarget = Callable[[], tuple[Target[object], Callable[[], object]]]
"""Makes a target, and the function that closes it."""
TargetCheck = Callable[[MakeTarget], None]


def _aspired(name: str, *versions: int) -> AspiredVersions[object]:
    data = tuple(ServableData(ServableId(name, v), object()) for v in versions)
    return AspiredVersions(name, data, "conformance")


def a_target_takes_calls_from_several_threads(make: MakeTarget) -> None:
    """Calls for different names may come at the same time."""
    target, close = make()
    take = target.aspired_versions_callback()
    failures: list[BaseException] = []

    def call(name: str) -> None:
        try:
            for version in range(5):
                take(_aspired(name, version))
            take(_aspired(name))
        except BaseException as error:
            failures.append(error)

    run_together(*(partial(call, f"s{index}") for index in range(4)))
    assert failures == []
    close()


def a_callback_outlives_its_target(make: MakeTarget) -> None:
    """Once the target is closed a call does nothing and does not raise."""
    target, close = make()
    take = target.aspired_versions_callback()
    close()
    take(_aspired("s", 1))
    target.aspired_versions_callback()(_aspired("s", 2))


TARGET_CHECKS: tuple[TargetCheck, ...] = (
    a_target_takes_calls_from_several_threads,
    a_callback_outlives_its_target,
)


def check_target(make: MakeTarget) -> None:
    """Runs every check of a target."""
    for check in TARGET_CHECKS:
        check(make)


# -- adapters ------------------------------------------------------------------------

MakeAdapter = Callable[[], SourceAdapter[object, object]]
AdapterCheck = Callable[[MakeAdapter, object], None]
"""Takes the maker and a payload that the adapter can take."""


def an_adapter_keeps_names_order_and_errors(make: MakeAdapter, payload: object) -> None:
    """Every item stays in its place; an error item passes through unchanged
    (source_adapter_test: UnarySourceAdapterTest.Basic).
    """
    adapter = make()
    target: RecordingTarget[object] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    error = DataLoss("broken before it came here")
    versions: tuple[ServableData[object], ...] = (
        ServableData(ServableId("s", 3), payload),
        ServableData(ServableId("s", 1), None, error),
        ServableData(ServableId("s", 2), payload),
    )
    adapter.aspired_versions_callback()(AspiredVersions("s", versions, "why"))
    (call,) = target.calls
    assert [data.id for data in call.versions] == [data.id for data in versions]
    assert call.versions[1].error is error
    assert (call.name, call.reason) == ("s", "why")


def an_adapter_hands_on_an_empty_set(make: MakeAdapter, payload: object) -> None:
    """Unloading everything is a call like any other."""
    adapter = make()
    target: RecordingTarget[object] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    adapter.aspired_versions_callback()(AspiredVersions("s", (), "gone"))
    assert [(call.name, call.versions) for call in target.calls] == [("s", ())]


def an_adapter_blocks_until_it_is_connected(make: MakeAdapter, payload: object) -> None:
    """A call made while the server is wired up is not lost
    (source_adapter_test: SetAspiredVersionsBlocksUntilTargetConnected).
    """
    adapter = make()
    aspired = AspiredVersions("s", (ServableData(ServableId("s", 1), payload),), "why")
    thread = threading.Thread(
        target=adapter.aspired_versions_callback(), args=(aspired,), daemon=True
    )
    thread.start()
    target: RecordingTarget[object] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    thread.join(PATIENCE_S)
    assert target.versions("s") == [1]


def an_adapter_has_one_target(make: MakeAdapter, payload: object) -> None:
    """A second outgoing side is refused."""
    adapter = make()
    target: RecordingTarget[object] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    with pytest.raises(RuntimeError):
        adapter.set_aspired_versions_callback(target.aspired_versions_callback())


ADAPTER_CHECKS: tuple[AdapterCheck, ...] = (
    an_adapter_keeps_names_order_and_errors,
    an_adapter_hands_on_an_empty_set,
    an_adapter_blocks_until_it_is_connected,
    an_adapter_has_one_target,
)


def check_source_adapter(make: MakeAdapter, payload: object) -> None:
    """Runs every check of an adapter that takes ``payload``."""
    for check in ADAPTER_CHECKS:
        check(make, payload)
