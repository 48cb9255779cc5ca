"""What a look at a directory of models shows, and what of it is believed."""

from __future__ import annotations

import pytest

from sources.model_repository import ModelRepository
from sources.servable_to_monitor import ServableToMonitor
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem


@pytest.fixture
def files() -> FakeFileSystem:
    return FakeFileSystem(FakeClock())


def names(repository: ModelRepository) -> list[str] | None:
    models = repository.models
    return None if models is None else [model.name for model in models]


def test_each_sub_directory_with_versions_is_a_model(files: FakeFileSystem) -> None:
    """Names are those of the sub-directories; what holds no version is none."""
    for path in ("a/1/x", "b/0002/x", "lost+found/x", ".hidden/1/x", "new/model.pt"):
        files.write(f"/models/{path}")
    files.write("/models/README")
    repository = ModelRepository("/models/")
    assert repository.look(files)
    assert names(repository) == ["a", "b"]
    assert repository.problem == ""
    assert repository.models is not None
    assert repository.models[0] == ServableToMonitor("a", "/models/a")
    assert not repository.look(files)


def test_a_directory_whose_names_only_look_like_versions_is_named(
    files: FakeFileSystem,
) -> None:
    """It is no model, and whoever wrote it waits for one."""
    files.write("/models/a/1/x")
    files.write("/models/b/20260102030405123456/x")
    repository = ModelRepository("/models")
    repository.look(files)
    assert names(repository) == ["a"]
    assert repository.problem == (
        "model repository /models: '20260102030405123456' in b is no version: that is a "
        "whole number up to 9223372036854775807, in one directory; the others are served"
    )


def test_models_come_and_go_with_their_directories(files: FakeFileSystem) -> None:
    """A new directory adds a model, a removed one removes it."""
    files.write("/models/a/1/x")
    repository = ModelRepository("/models")
    repository.look(files)
    files.write("/models/b/1/x")
    assert repository.look(files)
    assert names(repository) == ["a", "b"]
    files.remove("/models/a")
    assert repository.look(files)
    assert names(repository) == ["b"]


def test_a_model_stays_as_long_as_its_directory(files: FakeFileSystem) -> None:
    """Whether a model without versions is unloaded is not the repository's business."""
    files.write("/models/a/1/x")
    repository = ModelRepository("/models")
    repository.look(files)
    files.remove("/models/a/1")
    assert not repository.look(files)
    assert names(repository) == ["a"]


def test_an_unreadable_repository_changes_nothing(files: FakeFileSystem) -> None:
    """A lost mount removes no model, and says so."""
    files.write("/models/a/1/x")
    repository = ModelRepository("/models")
    repository.look(files)
    files.break_path("/models", OSError(5, "Input/output error"))
    assert not repository.look(files)
    assert names(repository) == ["a"]
    assert "Input/output error" in repository.problem
    files.break_path("/models", None)
    assert not repository.look(files)
    assert repository.problem == ""


def test_an_empty_repository_keeps_the_models_unless_asked(
    files: FakeFileSystem,
) -> None:
    """An empty mount point looks like a removed fleet; it is not believed."""
    files.write("/models/a/1/x")
    files.write("/other/x")
    for unload in (False, True):
        repository = ModelRepository("/models", unload_when_empty=unload)
        files.write("/models/a/1/x")
        repository.look(files)
        files.remove("/models/a")
        assert repository.look(files) is unload
        assert names(repository) == ([] if unload else ["a"])


def test_a_name_that_no_request_can_say_stops_no_other(files: FakeFileSystem) -> None:
    """A directory whose name is no UTF-8 is left out, and said to be."""
    for name in ("good", "bad\udcff"):
        files.write(f"/models/{name}/1/servable.json")
    repository = ModelRepository("/models")
    assert repository.look(files)
    assert [model.name for model in repository.models or ()] == ["good"]
    assert "'bad\\udcff' is no UTF-8" in repository.problem
    files.remove("/models/bad\udcff")
    assert not repository.look(files)
    assert repository.problem == ""


def test_an_unreadable_model_directory_is_left_out(files: FakeFileSystem) -> None:
    """A directory nobody may read is not a model, says so, and stops no other."""
    files.write("/models/a/1/x")
    files.write("/models/b/1/x")
    files.break_path("/models/b", PermissionError(13, "Permission denied"))
    repository = ModelRepository("/models")
    assert repository.look(files)
    assert names(repository) == ["a"]
    assert repository.examine(files).is_blind
    assert repository.problem == (
        "model repository /models: cannot read b: Permission denied; the others are served"
    )
    files.break_path("/models/b", None)
    assert repository.look(files)
    assert names(repository) == ["a", "b"]
    assert not repository.examine(files).is_blind
    assert repository.problem == ""


def test_whatever_a_file_system_raises_is_told(files: FakeFileSystem) -> None:
    """Drivers raise what they like: the models stay, and the next look is believed."""
    files.write("/models/a/1/x")
    repository = ModelRepository("/models")
    repository.look(files)
    files.break_path("/models", ValueError("bad credentials"))
    assert not repository.look(files)
    assert names(repository) == ["a"]
    assert repository.problem == "cannot list model repository /models: bad credentials"
    files.break_path("/models", None)
    assert not repository.look(files)
    assert repository.problem == ""


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("/models/readme/text", "a directory that holds numbered ones"),
        (
            "/models/1/servable.json",
            "it is the base path of one model; name /, in which",
        ),
    ],
)
def test_a_repository_without_models_says_what_would_be_one(
    files: FakeFileSystem, file: str, hint: str
) -> None:
    """A wrong directory must not look like a server that is fine and serves nothing."""
    files.write(file, b"")
    repository = ModelRepository("/models")
    repository.look(files)
    assert names(repository) == []
    assert "model repository /models holds no model" in repository.problem
    assert hint in repository.problem
    files.write("/models/a/1/servable.json", b"")
    repository.look(files)
    assert repository.problem == ""


def test_a_name_with_a_line_feed_is_no_model(files: FakeFileSystem) -> None:
    """It would be refused with the configuration, and with it every other model."""
    files.write("/models/a\nb/1/servable.json", b"")
    files.write("/models/a/1/servable.json", b"")
    repository = ModelRepository("/models")
    repository.look(files)
    assert names(repository) == ["a"]
    assert "'a\\nb' is no name of a model" in repository.problem
