"""Loaders that know what they were made from."""

from __future__ import annotations

from sources.adapter import LoaderSourceAdapter, MadeLoader
from tfs.core.errors import InvalidArgument
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData
from tfs.testing.fake_loader import FakeLoader, FakeServable
from tfs.testing.recording_target import RecordingTarget

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
