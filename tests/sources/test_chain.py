"""A chain is wired from its end and closed from its beginning."""

from __future__ import annotations

import pytest

from sources.adapter import PrefixStoragePathAdapter, UnarySourceAdapter
from sources.chain import SourceChain, StaticSource, static_storage_path_source
from sources.servable_to_monitor import StoragePath
from tfs.core.servable_id import ServableId
from tfs.core.source import (
    AspiredVersions,
    AspiredVersionsCallback,
    ServableData,
    connect,
)
from tfs.testing.recording_target import RecordingTarget


def path_length(_: ServableId, storage: StoragePath) -> int:
    return len(storage.path)


def test_payloads_pass_every_adapter_in_order() -> None:
    """A source connected to two adapters delivers what both made of it.

    aspired_versions_manager_builder_test: AddSourceConnection,
    AddSourceChainConnection.
    """
    target: RecordingTarget[int] = RecordingTarget()
    with SourceChain(
        static_storage_path_source("s", 1, "digits/1"),
        [PrefixStoragePathAdapter("/models"), UnarySourceAdapter(path_length)],
        target,
    ):
        (call,) = target.calls
        assert [data.payload for data in call.versions] == [len("/models/digits/1")]


def test_a_source_may_be_connected_without_adapters() -> None:
    """The shortest chain is a source and a target."""
    target: RecordingTarget[StoragePath] = RecordingTarget()
    SourceChain(static_storage_path_source("s", 1, "/s/1"), [], target).close()
    assert target.versions("s") == [1]


class Recorded:
    """A link that notes when it is closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self._name = name
        self._closed = closed

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[object]
    ) -> None:
        pass

    def aspired_versions_callback(self) -> AspiredVersionsCallback[object]:
        def ignore(_: AspiredVersions[object]) -> None:
            pass

        return ignore

    def close(self) -> None:
        self._closed.append(self._name)


def test_the_source_is_closed_first_and_the_target_never() -> None:
    """Nothing new comes while the links behind go down.

    aspired_versions_manager_builder_test: AddSourceChainDestructionOrder.
    """
    closed: list[str] = []
    links = [Recorded(name, closed) for name in ("source", "first", "second", "target")]
    chain = SourceChain(links[0], links[1:3], links[3])
    chain.close()
    assert closed == ["source", "first", "second"]


def test_a_link_without_close_is_left_alone() -> None:
    """A chain closes what can be closed, and no other link."""

    class Plain:
        def set_aspired_versions_callback(
            self, callback: AspiredVersionsCallback[object]
        ) -> None:
            callback(AspiredVersions("s", ()))

    target: RecordingTarget[object] = RecordingTarget()
    SourceChain(Plain(), [], target).close()
    assert target.versions("s") == []
    SourceChain(StaticSource[object]([]), [], RecordingTarget[object]()).close()


def test_a_static_path_is_aspired_once() -> None:
    """Connecting makes the one call there will ever be.

    static_storage_path_source_test: Basic.
    """
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(static_storage_path_source("s", 2, "/models/s/2"), target)
    (call,) = target.calls
    expected = ServableData(ServableId("s", 2), StoragePath("/models/s/2"))
    assert (call.name, call.versions) == ("s", (expected,))


def test_every_set_is_told_in_order() -> None:
    """Several names are told one after the other."""
    target: RecordingTarget[str] = RecordingTarget()
    source: StaticSource[str] = StaticSource(
        [AspiredVersions("a", ()), AspiredVersions("b", ())]
    )
    connect(source, target)
    assert [call.name for call in target.calls] == ["a", "b"]


def test_a_second_target_is_refused() -> None:
    """A source has one target."""
    source: StaticSource[str] = StaticSource([])
    connect(source, RecordingTarget[str]())
    with pytest.raises(RuntimeError, match="set already"):
        connect(source, RecordingTarget[str]())
