"""A source that follows a directory of models."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.model_repository import ModelRepository
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import All
from tfs.core.errors import InvalidArgument
from tfs.core.source import connect
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem
from tfs.testing.recording_target import RecordingTarget


@pytest.fixture
def files() -> FakeFileSystem:
    return FakeFileSystem(FakeClock())


def source_over(
    files: FakeFileSystem, poll_wait_s: float = -1
) -> tuple[FileSystemSource, RecordingTarget[StoragePath], FakeClock]:
    clock = FakeClock()
    source = FileSystemSource(
        FileSystemSourceOptions((), poll_wait_s=poll_wait_s),
        file_system=files,
        clock=clock,
    )
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(source, target)
    return source, target, clock


def told(target: RecordingTarget[StoragePath]) -> list[tuple[str, list[int]]]:
    return [(c.name, [d.id.version for d in c.versions]) for c in target.take()]


def test_a_source_serves_what_the_repository_holds(files: FakeFileSystem) -> None:
    """Models appear, get versions and disappear with one poll each."""
    source, target, _ = source_over(files)
    source.watch_repository(ModelRepository("/models"))
    files.write("/models/a/1/servable.json")
    source.poll_once()
    assert told(target) == [("a", [1])]
    files.write("/models/b/1/servable.json")
    files.write("/models/a/2/servable.json")
    source.poll_once()
    assert sorted(told(target)) == [("a", [2]), ("b", [1])]
    files.remove("/models/a")
    source.poll_once()
    assert told(target) == [("a", [])]


def test_a_repository_gives_every_model_its_policy(files: FakeFileSystem) -> None:
    """What a model gets besides name and path is the owner's choice."""
    source, target, _ = source_over(files)
    source.watch_repository(
        ModelRepository(
            "/models", lambda name, path: ServableToMonitor(name, path, All())
        )
    )
    files.write("/models/a/1/servable.json")
    files.write("/models/a/2/servable.json")
    source.poll_once()
    assert told(target) == [("a", [1, 2])]


def test_a_server_may_lay_its_overrides_over_the_models(
    files: FakeFileSystem,
) -> None:
    """With on_models the owner is told, and configures the source itself."""
    source, target, _ = source_over(files)
    seen: list[list[str]] = []

    def on_models(models: Sequence[ServableToMonitor]) -> None:
        seen.append([model.name for model in models])
        source.update_config(models)

    source.watch_repository(ModelRepository("/models"), on_models)
    files.write("/models/a/1/servable.json")
    source.poll_once()
    source.poll_once()
    assert seen == [["a"]]
    assert told(target) == [("a", [1])]


def test_an_owner_that_refuses_the_models_stops_nothing(
    files: FakeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused listing is logged; the next change is told again."""
    source, _, _ = source_over(files)
    seen: list[int] = []

    def refuse(models: Sequence[ServableToMonitor]) -> None:
        seen.append(len(models))
        raise InvalidArgument("no")

    source.watch_repository(ModelRepository("/models"), refuse)
    files.write("/models/a/1/servable.json")
    source.poll_once()
    files.write("/models/b/1/servable.json")
    source.poll_once()
    assert seen == [1, 2]


def test_a_missing_repository_is_a_problem_and_is_looked_for(
    files: FakeFileSystem,
) -> None:
    """A repository that appears later is found by the next poll."""
    source, target, clock = source_over(files, poll_wait_s=1)
    source.watch_repository(ModelRepository("/models"))
    source.step()
    assert "/models" in source.repository_problem
    files.write("/models/a/1/servable.json")
    clock.advance(1)
    source.step()
    assert told(target) == [("a", [1])]
    assert source.repository_problem == ""


def test_a_new_model_is_noticed_by_its_event(files: FakeFileSystem) -> None:
    """A change right below the repository brings the look forward, once per gap."""
    source, target, clock = source_over(files, poll_wait_s=600)
    source.watch_repository(ModelRepository("/models"))
    files.write("/models/a/1/servable.json")
    source.step()
    assert told(target) == [("a", [1])]
    files.write("/models/b/1/servable.json")
    calls = files.num_calls
    source.mark_changed("/elsewhere")
    source.mark_changed("/models/b")
    source.step()
    assert files.num_calls == calls
    source.mark_changed("/models")
    source.step()
    assert files.num_calls == calls
    clock.advance(0.05)
    source.step()
    assert told(target) == [("b", [1])]
