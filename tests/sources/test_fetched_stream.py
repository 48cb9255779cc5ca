"""sources.fetched_stream: what is copied, told and kept of one servable."""

from __future__ import annotations

import pytest

from sources.fetched_stream import FetchedStream, LocalCopy, Service
from sources.storage_path import StoragePath
from tfs.core.errors import DataLoss, ResourceExhausted, ServingError, Unavailable
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId


def remote(version: int) -> StoragePath:
    return StoragePath(f"s3://b/m/{version}", "f", "hashmap")


def local(version: int) -> StoragePath:
    return StoragePath(f"/cache/{version}", "f", "hashmap")


def aspired(*versions: int) -> AspiredVersions[StoragePath]:
    return AspiredVersions(
        "m",
        tuple(ServableData(ServableId("m", v), remote(v)) for v in versions),
        "",
    )


class World:
    """A stream, what it released, and what became of its versions."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.services: dict[int, Service] = {}
        self.stream = FetchedStream(
            aspired(),
            lambda copy: self.released.append(copy.path),
            lambda each: self.services.get(each.version, Service.GOES_ON),
        )

    def want(self, *versions: int, now_s: float = 0.0) -> list[int]:
        """Returns the versions to copy."""
        missing = self.stream.want(aspired(*versions), now_s)
        return [servable_id.version for servable_id, _ in missing]

    def take(
        self, version: int, error: ServingError | None = None, now_s: float = 0.0
    ) -> float | None:
        """Ends a copy; returns when to try again."""
        copy = LocalCopy(ServableId("m", version), local(version))
        return self.stream.take(remote(version), error or copy, now_s)

    def tell(self, took_s: float = 0.0) -> list[str]:
        """Returns what the target is told."""
        told = self.stream.begin_telling()
        self.stream.end_telling(0.0, took_s)
        return [d.payload.path if d.payload else str(d.error) for d in told.versions]


def test_each_version_is_copied_once_and_told_when_it_is_here() -> None:
    """What was told before stays told until then."""
    w = World()
    assert w.want(1) == [1]
    assert w.want(1) == []
    assert w.take(1) is None
    assert w.tell() == ["/cache/1"]
    assert w.want(2) == [2]
    assert w.tell() == ["/cache/1"]
    assert w.stream.is_moving
    w.take(2)
    assert w.tell() == ["/cache/2"]
    assert not w.stream.is_moving


@pytest.mark.parametrize(
    ("error", "pauses_s"),
    [
        (Unavailable("no answer"), [1.0, 2.0, 4.0, 8.0]),
        (DataLoss("damaged"), [15.0, 30.0, 60.0, 120.0]),
        (ResourceExhausted("no room"), [None, None]),
    ],
    ids=lambda each: each.code.name if isinstance(each, ServingError) else "",
)
def test_a_failed_copy_is_tried_again_ever_later(
    error: ServingError, pauses_s: list[float | None]
) -> None:
    """Soon where the store is to blame, and only on demand where there was no room."""
    w = World()
    w.want(1)
    for pause_s in pauses_s:
        assert w.take(1, error, now_s=0.0) == pause_s
        assert w.tell() == [str(error)]
        due_s = pause_s or 0.0
        if pause_s is not None:
            assert not w.stream.try_again(remote(1), due_s - 0.1)
        assert w.stream.try_again(remote(1), due_s)
        assert not w.stream.try_again(remote(1), due_s)


def test_what_is_not_wanted_any_more_is_neither_tried_nor_kept() -> None:
    """A copy that ends for nobody is released at once."""
    w = World()
    w.want(1)
    w.want(2)
    w.tell()
    w.take(1)
    assert w.released == ["/cache/1"]
    assert not w.stream.try_again(remote(1), 1e9)


def test_what_goes_on_and_what_served_last_is_kept() -> None:
    """All else is given up before another version is copied."""
    w = World()
    history = {
        1: Service.SERVED,
        2: Service.SERVED,
        3: Service.GOES_ON,
        4: Service.NONE,
    }
    for version, service in history.items():
        w.want(version)
        w.take(version)
        w.tell()
        w.services[version] = service
    w.want(5)
    assert sorted(w.released) == ["/cache/1", "/cache/4"]
    w.take(5)
    w.tell()
    assert w.want(3) == []
    assert w.tell() == ["/cache/3"]


def test_everything_is_released_when_nothing_is_wanted() -> None:
    """The adapter forgets the stream then."""
    w = World()
    w.want(1)
    w.take(1)
    w.tell()
    w.services[1] = Service.GOES_ON
    w.want(2)
    w.take(2)
    w.tell()
    w.want()
    assert w.tell() == []
    assert not w.stream.is_wanted
    assert sorted(w.released) == ["/cache/1", "/cache/2"]


def test_a_target_that_takes_long_hears_of_several_copies_together() -> None:
    """The last one waits for nobody."""
    w = World()
    w.want(1, 2, 3)
    w.take(1)
    w.tell(took_s=1.0)
    w.take(2, now_s=2.0)
    assert not w.stream.is_due(2.0)
    assert w.stream.is_due(4.0)
    w.take(3, now_s=2.0)
    assert w.stream.is_due(2.0)
