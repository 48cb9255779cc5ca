from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
import torch

from tests.models.digits import DigitClassifier
from tests.servables.fakes import FakeInterpreter
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.version_layout import LAYOUTS
from tfs.core.version_directory import check_files
from tfs.export import save
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.hashmap import HashmapLoader
from tfs.servables.platforms.model_archive import TorchScript
from tfs.servables.registry import BUILT_IN, OwnLoader, PlatformRegistry

CONTEXT = LoadContext(lambda _: FakeInterpreter())


class Greeting:
    """A third-party platform: versions with a greeting.txt."""

    name = "greeting"

    def recognizes(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, "greeting.txt"))

    def runs_code(self, path: str) -> bool:
        return False

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return HashmapLoader(path)


class Grumpy(Greeting):
    """A third-party platform that fails when it looks."""

    name = "grumpy"

    def recognizes(self, path: str) -> bool:
        raise OSError("it cannot be bothered")


class Reading(Greeting):
    """A third-party platform that has a loader, and what a reader has."""

    describe = TorchScript.describe
    estimate = TorchScript.estimate
    why_apart = TorchScript.why_apart


def greeting() -> Greeting:
    """Returns the platform, as an entry point may."""
    return Greeting()


INSTANCE = Greeting()


def entry_point(target: str, name: str = "greeting") -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(
        name, f"tests.servables.test_registry:{target}", "tfs.platforms"
    )


def registry(
    *entry_points: importlib.metadata.EntryPoint, allow_model_code: bool = True
) -> PlatformRegistry:
    return PlatformRegistry(
        BUILT_IN,
        allow_model_code=allow_model_code,
        entry_points=entry_points,
    )


@pytest.fixture
def package(tmp_path: Path) -> str:
    return save(DigitClassifier(), torch.rand(2, 64), tmp_path / "base")


@pytest.mark.parametrize("model_platform", ["", "torch_package"])
def test_package_is_found_by_content_or_by_name(
    package: str, model_platform: str
) -> None:
    """A configuration that names no platform has it detected; a name decides."""
    assert registry().loader(package, CONTEXT, model_platform)
    os.unlink(f"{package}/servable.json")
    assert registry().loader(package, CONTEXT, model_platform)
    assert registry().detect(package).name == "torch_package"


def test_every_built_in_platform_has_a_layout() -> None:
    """One record tells the files of a platform, and no record is of none."""
    assert {platform.name for platform in BUILT_IN} == LAYOUTS.keys()


def test_table_is_found_by_its_file(tmp_path: Path) -> None:
    """A lookup table needs no manifest."""
    (tmp_path / "table.csv").write_text("k,v\na,1\n")
    assert registry().detect(str(tmp_path)).name == "hashmap"
    loader = registry().loader(str(tmp_path), CONTEXT)
    loader.load(ServableId("t", 1))
    assert "v" in loader.servable.signatures[DEFAULT_SIGNATURE].outputs


def test_unknown_platform_lists_those_there_are(tmp_path: Path) -> None:
    """A typing mistake in the configuration is answered with the choices."""
    with pytest.raises(InvalidArgument, match=r"'onnx'; known: torch_package.*hashmap"):
        registry().loader(str(tmp_path), CONTEXT, "onnx")


def test_model_code_can_be_forbidden(package: str, tmp_path: Path) -> None:
    """--allow_model_code=false refuses code, and only that."""
    strict = registry(allow_model_code=False)
    with pytest.raises(FailedPrecondition, match="allow_model_code"):
        strict.loader(package, CONTEXT)
    (tmp_path / "table.csv").write_text("k,v\na,1\n")
    assert strict.loader(str(tmp_path), CONTEXT)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"saved_model.pb": b""}, "TensorFlow SavedModel"),
        ({"notes.txt": b""}, "nothing to serve among notes.txt"),
        ({}, "among no files"),
        ({"model.pt": b"PK\x03\x04 cut short"}, "not a readable archive"),
    ],
)
def test_what_cannot_be_served_is_explained(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    """The version's status says what was found instead of a model."""
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises((InvalidArgument, DataLoss), match=message):
        registry().loader(str(tmp_path), CONTEXT)


def test_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    """torch.save is the usual mistake, and has an answer of its own."""
    torch.save({"w": torch.ones(1)}, tmp_path / "model.pt")
    with pytest.raises(InvalidArgument, match=r"torch\.save, which keeps no code"):
        registry().loader(str(tmp_path), CONTEXT)


@pytest.mark.parametrize(
    "name",
    ["model.pt", "servable.json", "assets.extra/tf_serving_warmup_requests", "a/b"],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_could_be_waited_for_for_ever_is_refused(
    package: str, name: str, kind: str
) -> None:
    """Opening a pipe that nobody writes to held a load, or the source, for good."""
    file = Path(package, name)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/null")
    with pytest.raises(FailedPrecondition, match=f"{name} is a pipe"):
        registry().loader(package, CONTEXT)
    file.unlink()
    file.symlink_to("/nowhere")  # as editors leave beside files
    check_files(package)


def test_directory_that_is_gone_is_not_found(tmp_path: Path) -> None:
    """A version can be deleted between listing and loading."""
    with pytest.raises(NotFound):
        registry().loader(str(tmp_path / "7"), CONTEXT)


@pytest.mark.parametrize("target", ["Greeting", "greeting", "INSTANCE"])
def test_third_party_platform_is_detected_and_named(
    tmp_path: Path, target: str
) -> None:
    """An entry point may be a platform, its class, or a function that makes one."""
    (tmp_path / "greeting.txt").write_text("hello")
    ours = registry(entry_point(target))
    assert ours.detect(str(tmp_path)).name == "greeting"
    assert ours.get("greeting").name == "greeting"
    assert ours.names[-1] == "greeting"


def test_broken_third_party_platform_harms_only_its_own_versions(
    tmp_path: Path,
) -> None:
    """An entry point that cannot be imported is an error of whoever asks for it."""
    ours = registry(entry_point("absent"))
    (tmp_path / "table.csv").write_text("k,v\na,1\n")
    assert ours.detect(str(tmp_path)).name == "hashmap"
    with pytest.raises(Internal, match="cannot be imported"):
        ours.loader(str(tmp_path), CONTEXT, "greeting")
    (tmp_path / "table.csv").unlink()
    with pytest.raises(ServingError, match="nothing to serve"):
        ours.loader(str(tmp_path), CONTEXT)


def test_a_platform_that_has_a_loader_loads_by_it(tmp_path: Path) -> None:
    """Whatever else it has, say by inheritance from one of ours."""
    (tmp_path / "greeting.txt").write_text("hello")
    ours = registry(entry_point("Reading"))
    assert isinstance(ours.loader(str(tmp_path), CONTEXT), OwnLoader)


def test_third_party_platform_that_fails_to_recognize_is_passed_over(
    tmp_path: Path,
) -> None:
    """Versions of the platforms after it are found all the same."""
    (tmp_path / "greeting.txt").write_text("hello")
    ours = registry(entry_point("Grumpy", "grumpy"), entry_point("INSTANCE"))
    assert ours.detect(str(tmp_path)).name == "greeting"


def test_entry_point_with_another_name_is_refused(tmp_path: Path) -> None:
    """What is configured under one name must not turn out to be something else."""
    with pytest.raises(Internal, match="calls itself 'greeting'"):
        registry(entry_point("INSTANCE", "other")).get("other")


def test_built_in_name_cannot_be_taken() -> None:
    """A package that is installed by accident does not replace a platform."""
    ours = registry(entry_point("INSTANCE", "hashmap"))
    assert ours.get("hashmap").name == "hashmap"
    assert ours.names.count("hashmap") == 1
