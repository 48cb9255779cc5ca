"""Outlets, and the promises of sources, targets and adapters kept by ours."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sources.adapter import (
    ErrorInjectingSourceAdapter,
    IdentitySourceAdapter,
    UnarySourceAdapter,
)
from sources.chain import StaticSource
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.servable_to_monitor import ServableToMonitor
from tests.core.conformance import (
    ADAPTER_CHECKS,
    SOURCE_CHECKS,
    TARGET_CHECKS,
    AdapterCheck,
    SourceCheck,
    TargetCheck,
    check_name,
)
from tfs.core.errors import NotFound, Unavailable
from tfs.core.servable_id import ServableId
from tfs.core.source import (
    AspiredVersions,
    Outlet,
    ServableData,
    Source,
    Target,
)
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem


def aspired(name: str = "s") -> AspiredVersions[object]:
    return AspiredVersions(name, (ServableData(ServableId(name, 1), "x"),), "why")


def test_closing_frees_who_waits_and_silences_the_rest() -> None:
    """A closed outlet calls nobody, connected or not."""
    outlet: Outlet[object] = Outlet()
    thread = threading.Thread(target=outlet.emit, args=(aspired(),))
    thread.start()
    outlet.close()
    thread.join(20)
    assert not thread.is_alive()
    told: list[AspiredVersions[object]] = []
    outlet.set_aspired_versions_callback(told.append)
    outlet.emit(aspired())
    assert told == []
    assert not outlet.wait_connected()


class FileSystemUnderTest:
    """A polled source over one version."""

    def __init__(self) -> None:
        clock = FakeClock()
        files = FakeFileSystem(clock)
        files.write("/m/1/servable.json")
        self._source = FileSystemSource(
            FileSystemSourceOptions((ServableToMonitor("m", "/m"),), poll_wait_s=-1),
            file_system=files,
            clock=clock,
        )
        self.source: Source[object] = self._source  # type: ignore[assignment]

    def trigger(self) -> None:
        self._source.poll_once()

    def close(self) -> None:
        self._source.close()


class StaticUnderTest:
    """A source that speaks when it is connected."""

    def __init__(self) -> None:
        self._source: StaticSource[object] = StaticSource([aspired()])
        self.source: Source[object] = self._source

    def trigger(self) -> None:
        pass

    def close(self) -> None:
        self._source.close()


@pytest.mark.parametrize("make", [FileSystemUnderTest, StaticUnderTest])
@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=check_name)
def test_our_sources_keep_the_promises(
    check: SourceCheck, make: type[FileSystemUnderTest | StaticUnderTest]
) -> None:
    """Every source keeps what the protocol promises."""
    check(make)


def make_unary() -> UnarySourceAdapter[object, object]:
    return UnarySourceAdapter(lambda _, payload: [payload])


def make_error_injecting() -> ErrorInjectingSourceAdapter[object, object]:
    return ErrorInjectingSourceAdapter(Unavailable("not offered"))


@pytest.mark.parametrize(
    "make", [make_unary, make_error_injecting, IdentitySourceAdapter]
)
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=check_name)
def test_our_adapters_keep_the_promises(
    check: AdapterCheck, make: type[IdentitySourceAdapter[object]]
) -> None:
    """Every adapter keeps what the protocol promises."""
    check(make, "payload")


@pytest.mark.parametrize("check", TARGET_CHECKS, ids=check_name)
def test_an_adapter_is_a_target_too(check: TargetCheck) -> None:
    """The incoming side of an adapter is a target like any other."""

    def make() -> tuple[Target[object], Callable[[], object]]:
        adapter: IdentitySourceAdapter[object] = IdentitySourceAdapter()
        adapter.set_aspired_versions_callback(lambda _: None)
        return adapter, adapter.close

    check(make)


ID = ServableId("a", 1)


def test_data_carries_a_payload() -> None:
    """A healthy version has what to load it from.

    servable_data_test: NoError, StaticCreateNoError.
    """
    data = ServableData(ID, "path")
    assert (data.id, data.payload, data.error) == (ID, "path", None)


def test_data_carries_an_error() -> None:
    """A source may aspire a version that cannot be loaded.

    servable_data_test: Error.
    """
    error = NotFound("no files")
    data: ServableData[str] = ServableData(ID, None, error)
    assert (data.payload, data.error) == (None, error)


def test_data_carries_exactly_one_of_the_two() -> None:
    """Neither or both would leave a manager guessing."""
    with pytest.raises(ValueError, match="either"):
        ServableData(ID)
    with pytest.raises(ValueError, match="either"):
        ServableData(ID, "path", NotFound("no files"))


def test_an_empty_payload_is_a_payload() -> None:
    """Only None means that there is no payload; "" and 0 are payloads."""
    assert ServableData(ID, "").payload == ""


def test_another_payload_leaves_the_id() -> None:
    """Adapters turn a path into a loader without touching what it is of."""
    assert ServableData(ID, "path").with_payload(3) == ServableData(ID, 3)


def test_a_set_belongs_to_one_name() -> None:
    """A version of another servable in a set is a fault of the source."""
    assert AspiredVersions("a", (ServableData(ID, "x"),)).reason == ""
    with pytest.raises(ValueError, match="doesn't match"):
        AspiredVersions("b", (ServableData(ID, "x"),))
