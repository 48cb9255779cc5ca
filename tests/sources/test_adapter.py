"""Adapters convert version by version."""

from __future__ import annotations

import pytest

from sources.adapter import (
    ErrorInjectingSourceAdapter,
    IdentitySourceAdapter,
    LoaderSourceAdapter,
    MadeLoader,
    PrefixStoragePathAdapter,
    UnarySourceAdapter,
    join_path,
)
from sources.servable_to_monitor import StoragePath
from tfs.core.errors import Code, InvalidArgument, ServingError, Unavailable, Unknown
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData
from tfs.testing.fake_loader import FakeLoader, FakeServable
from tfs.testing.recording_target import RecordingTarget


def data(version: int, payload: str = "a") -> ServableData[str]:
    return ServableData(ServableId("s", version), payload)


def failed(version: int, error: ServingError) -> ServableData[str]:
    return ServableData(ServableId("s", version), None, error)


def shout(_: ServableId, payload: str) -> str:
    if payload == "bad":
        raise InvalidArgument("cannot shout that")
    if payload == "bug":
        raise KeyError("bug")
    return payload.upper()


def shouting() -> tuple[UnarySourceAdapter[str, str], RecordingTarget[str]]:
    adapter = UnarySourceAdapter(shout)
    target: RecordingTarget[str] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    return adapter, target


def test_one_version_can_be_adapted_by_itself() -> None:
    """A single conversion needs no target.

    source_adapter_test: AdaptOneVersion.
    """
    adapter = UnarySourceAdapter(shout)
    assert adapter.adapt_one(data(1, "foo")) == data(1, "FOO")
    error = Unknown("d'oh")
    assert adapter.adapt_one(failed(1, error)).error is error


@pytest.mark.parametrize(
    ("payload", "code"), [("bad", Code.INVALID_ARGUMENT), ("bug", Code.INTERNAL)]
)
def test_a_version_that_cannot_be_converted_is_an_error(
    payload: str, code: Code
) -> None:
    """A failed conversion is that version's error and nobody else's."""
    adapter = UnarySourceAdapter(shout)
    adapted = adapter.adapt(AspiredVersions("s", (data(1, payload), data(2))))
    assert adapted.versions[0].error is not None
    assert adapted.versions[0].error.code is code
    assert adapted.versions[1].payload == "A"


def test_equal_payloads_give_the_same_object_again() -> None:
    """A target sees by identity which versions are new."""
    made: list[list[str]] = []

    def convert(_: ServableId, payload: str) -> list[str]:
        made.append([payload])
        return made[-1]

    adapter = UnarySourceAdapter(convert)
    first = adapter.adapt(AspiredVersions("s", (data(1), data(2))))
    again = adapter.adapt(AspiredVersions("s", (data(1), data(2, "new"))))
    assert first.versions[0].payload is again.versions[0].payload
    assert again.versions[1].payload == ["new"]
    assert len(made) == 3


def test_a_version_that_left_and_came_back_is_converted_anew() -> None:
    """A loader is used once: a version that comes back gets another one."""
    adapter: UnarySourceAdapter[str, object] = UnarySourceAdapter(lambda *_: object())
    first = adapter.adapt(AspiredVersions("s", (data(1),)))
    adapter.adapt(AspiredVersions("s", ()))
    again = adapter.adapt(AspiredVersions("s", (data(1),)))
    assert first.versions[0].payload is not again.versions[0].payload


def test_a_failed_conversion_is_tried_again() -> None:
    """What could not be read a moment ago is read at the next call."""
    faults = [OSError("away")]

    def convert(_: ServableId, payload: str) -> str:
        if faults:
            raise faults.pop()
        return "here"

    adapter = UnarySourceAdapter(convert)
    aspired = AspiredVersions("s", (data(1),))
    assert adapter.adapt(aspired).versions[0].error is not None
    assert adapter.adapt(aspired).versions[0].payload == "here"


def test_a_closed_adapter_does_nothing() -> None:
    """A source may hold the callback longer than the adapter lives."""
    adapter, target = shouting()
    callback = adapter.aspired_versions_callback()
    adapter.close()
    callback(AspiredVersions("s", (data(1),)))
    assert target.calls == []


def test_the_error_injecting_adapter_replaces_payloads_only() -> None:
    """Every version gets the error; one that has an error keeps its own.

    source_adapter_test: ErrorInjectingSourceAdapterTest.Basic.
    """
    injected = Unavailable("not offered")
    own = Unknown("own")
    adapter: ErrorInjectingSourceAdapter[str, str]
    adapter = ErrorInjectingSourceAdapter(injected)
    adapted = adapter.adapt(AspiredVersions("s", (data(0), failed(1, own))))
    assert [d.error for d in adapted.versions] == [injected, own]


def test_the_identity_adapter_changes_nothing() -> None:
    """What goes in comes out."""
    aspired = AspiredVersions("s", (data(1), data(2)), "why")
    assert IdentitySourceAdapter[str]().adapt(aspired) == aspired


def test_the_prefix_adapter_joins_paths() -> None:
    """Every path gets the prefix.

    prefix_storage_path_source_adapter_test: Basic.
    """
    adapter = PrefixStoragePathAdapter("/base/")
    storage = ServableData(ServableId("s", 1), StoragePath("/digits/1", "f", "p"))
    assert adapter.adapt_one(storage).payload == StoragePath("/base/digits/1", "f", "p")


@pytest.mark.parametrize(
    ("prefix", "path", "joined"),
    [
        ("/a", "b", "/a/b"),
        ("/a/", "/b", "/a/b"),
        ("", "/b", "/b"),
        ("/a", "", "/a"),
        ("/", "b", "/b"),
        ("s3://bucket", "b/1", "s3://bucket/b/1"),
    ],
)
def test_paths_are_joined_with_one_slash(prefix: str, path: str, joined: str) -> None:
    """Neither side needs to know how the other one ends."""
    assert join_path(prefix, path) == joined


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError(), OSError(2, "gone")])
def test_whatever_a_conversion_raises_is_its_versions_error(
    error: BaseException,
) -> None:
    """A platform that exits while it makes a loader does not end the source's thread."""

    def convert(servable_id: ServableId, payload: str) -> str:
        if servable_id.version == 1:
            raise error
        return payload

    adapter: UnarySourceAdapter[str, str] = UnarySourceAdapter(convert)
    bad, good = adapter.adapt(AspiredVersions("s", (data(1), data(2)))).versions
    assert bad.error is not None
    assert bad.error.code is Code.INTERNAL
    assert bad.error.message.startswith(f"cannot use s/1: {type(error).__name__}: ")
    assert good.payload == "a"


ID = ServableId("m", 1)


def make(servable_id: ServableId, payload: str) -> FakeLoader:
    if payload == "bad":
        raise InvalidArgument("no such platform")
    return FakeLoader(servable_id, value=payload)


def test_loaders_of_equal_payloads_are_equal() -> None:
    """A version that comes back is known again, whoever made its loader anew."""
    made = MadeLoader(ID, "a", make)
    assert made == MadeLoader(ID, "a", make)
    assert hash(made) == hash(MadeLoader(ID, "a", make))
    assert made != MadeLoader(ID, "b", make)
    assert made != MadeLoader(ServableId("m", 2), "a", make)
    assert made != MadeLoader(ID, "a", lambda i, p: FakeLoader(i, value=p))
    assert made != "a"


def test_another_is_made_from_the_same_and_was_never_loaded() -> None:
    """What is unloaded can be loaded again, by a loader of its own."""
    made: MadeLoader[str, FakeServable] = MadeLoader(ID, "a", make)
    made.load(ID)
    assert made.estimate_resources().describe() == "nothing"
    another = made.make_another
    made.unload()
    again = another()
    assert again == made
    again.load(ID)
    servable: FakeServable = again.servable
    assert servable.value == "a"
    again.unload()


def test_each_version_gets_its_loader() -> None:
    """What cannot be made is that version's error; the others go on (SourceAdapter Basic)."""
    adapter: LoaderSourceAdapter[str, FakeServable] = LoaderSourceAdapter(make)
    target: RecordingTarget[Loader[FakeServable]] = RecordingTarget()
    adapter.set_aspired_versions_callback(target.aspired_versions_callback())
    versions = (ServableData(ID, "a"), ServableData(ServableId("m", 2), "bad"))
    for _ in range(2):
        adapter.aspired_versions_callback()(AspiredVersions("m", versions))
    (first, second), (again, _) = (call.versions for call in target.calls)
    assert first.payload is again.payload
    assert str(second.error) == "INVALID_ARGUMENT: no such platform"
