"""Bytes that flipped and files that were cut short are damage, whatever reads them first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models.served import Scale
from tfs.core.errors import DataLoss, ServingError
from tfs.core.servable_id import ServableId
from tfs.export import save, save_python
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry

ID = ServableId("scale", 1)
ARCHIVES = {
    "torch_package": "model.pt",
    "torchscript": "model.pt",
    "torch_export": "model.pt2",
}
SOURCE = """\
class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
        }
    }

    def predict(self, x):
        return {"y": x}
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A version of each platform, by its name."""
    folder = tmp_path_factory.mktemp("whole")
    made = {}
    for platform in ARCHIVES:
        path = save(
            Scale(2.0).eval(),
            {"x": torch.rand(2, 2)},
            folder / platform,
            1,
            platform=platform,
        )
        made[platform] = Path(path)
    (folder / "servable.py").write_text(SOURCE)
    made["python"] = Path(save_python(folder / "servable.py", folder / "python", 1))
    return made


@pytest.fixture
def context() -> Iterator[LoadContext]:
    interpreter = InlineInterpreter("inline-damaged")
    yield LoadContext(lambda _: interpreter)
    interpreter.close()


def copied(version: Path, folder: Path, *, is_listed: bool) -> Path:
    """Returns a copy of a version, in whose manifest its files have digests or not."""
    path = Path(shutil.copytree(version, folder / "1"))
    manifest = json.loads((path / "servable.json").read_text())
    if not is_listed:
        manifest["files"] = {}
    (path / "servable.json").write_text(json.dumps(manifest))
    return path


def failure(path: Path, context: LoadContext) -> ServingError | None:
    """Returns what becomes of a load, in the order in which a server asks."""
    loader = default_registry().loader(str(path), context)
    try:
        loader.estimate_resources()
        vars(type(loader)).get("code_digest", property(lambda _: "")).fget(loader)
        loader.load(ID)
    except ServingError as error:
        return error
    loader.unload()
    return None


def places(content: bytes) -> list[int]:
    """Returns a few bytes all over a file, and more in an archive's directory."""
    directory = content.find(b"PK\x01\x02")
    at_the_end = range(directory, len(content), 17) if directory >= 0 else ()
    return [*range(0, len(content), max(1, len(content) // 10)), *at_the_end]


@pytest.mark.parametrize("platform", [*ARCHIVES, "python"])
def test_a_byte_that_flipped_in_a_listed_file_is_damage(
    platform: str, versions: dict[str, Path], tmp_path: Path, context: LoadContext
) -> None:
    """DATA_LOSS, which is not tried again, though names or a directory cannot be read."""
    path = copied(versions[platform], tmp_path, is_listed=True)
    file = path / ARCHIVES.get(platform, "servable.py")
    content = file.read_bytes()
    for place in places(content):
        file.write_bytes(_flipped(content, place))
        assert type(failure(path, context)) is DataLoss, place
    for end in (0, 1, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:end])
        assert type(failure(path, context)) is DataLoss, end


@pytest.mark.parametrize("platform", ARCHIVES)
def test_a_byte_that_flipped_in_an_archive_without_a_digest_is_damage(
    platform: str, versions: dict[str, Path], tmp_path: Path, context: LoadContext
) -> None:
    """Its records have checksums; what lies between them does not matter."""
    path = copied(versions[platform], tmp_path, is_listed=False)
    file = path / ARCHIVES[platform]
    content = file.read_bytes()
    outcomes = []
    for place in places(content):
        file.write_bytes(_flipped(content, place))
        outcomes.append(type(failure(path, context)))
    assert {*outcomes} <= {DataLoss, type(None)}
    assert outcomes.count(DataLoss) > len(outcomes) // 4
    for end in (0, 1, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:end])
        assert type(failure(path, context)) is DataLoss, end


def test_source_without_a_digest_that_is_no_python_is_damage(
    versions: dict[str, Path], tmp_path: Path, context: LoadContext
) -> None:
    """Cut short or with a byte that Python does not take, it is not tried again."""
    path = copied(versions["python"], tmp_path, is_listed=False)
    file = path / "servable.py"
    content = file.read_bytes()
    for damaged in (content[:40], content.replace(b"def", b"d\0f"), b"\xff" + content):
        file.write_bytes(damaged)
        error = failure(path, context)
        assert type(error) is DataLoss
        assert "servable.py is no Python" in error.message


def _flipped(content: bytes, place: int) -> bytes:
    flipped = bytearray(content)
    flipped[place] ^= 0x80
    return bytes(flipped)
