from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tfs.core.errors import FailedPrecondition
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.torch_export import why_code
from tfs.servables.registry import default_registry

Edit = Callable[[bytes], bytes]


class Branches(nn.Module):
    """Sizes that depend on others, a branch, a constant: what graphs are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.register_buffer("ones", torch.ones(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        num = x.shape[0]
        return self.net(y[: num // 2 + 1]) + self.ones, torch.arange(num * 3 - 1)


class Command:
    """What runs a program when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("exit 1",)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive as torch writes it."""
    path = tmp_path_factory.mktemp("plain") / "model.pt2"
    program = torch.export.export(
        Branches().eval(),
        (torch.rand(4, 2),),
        dynamic_shapes=({0: torch.export.Dim.AUTO},),
    )
    torch.export.save(program, path)
    return path


def edited(plain: Path, folder: Path, edits: dict[str, Edit]) -> Path:
    """The archive with records changed, by the ends of their names."""
    path = folder / "model.pt2"
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            for end, edit in edits.items():
                if name.endswith(end):
                    data = edit(data)
            new.writestr(name, data)
    return path


def pickled(_: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save((Command(),), buffer)
    return buffer.getvalue()


def with_node(**changes: object) -> Edit:
    def edit(data: bytes) -> bytes:
        program = json.loads(data)
        program["graph_module"]["graph"]["nodes"][0] |= changes
        return json.dumps(program).encode()

    return edit


def with_size(expression: str) -> Edit:
    def edit(data: bytes) -> bytes:
        return data.replace(
            b'"expr_str": "Symbol(', b'"expr_str": "' + expression.encode() + b"(", 1
        )

    return edit


def test_a_plain_graph_brings_no_code(plain: Path) -> None:
    """Operators, sizes, branches and tensors are data."""
    assert why_code(str(plain)) is None


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"sample_inputs/model.pt": pickled}, "system"),
        ({"sample_inputs/model.pt": lambda _: b"garbage"}, "cannot be looked into"),
        (
            {"models/model.json": with_node(target="torch._utils.os.system")},
            "os.system",
        ),
        ({"models/model.json": with_node(target="torch.ops.load_library")}, "library"),
        (
            {"models/model.json": with_node(target="torch.ops.aten.from_file.default")},
            "from_file",
        ),
        ({"models/model.json": with_node(target="_operator.methodcaller")}, "caller"),
        ({"models/model.json": with_node(target="#anything")}, "#anything"),
        ({"models/model.json": with_size("eval")}, "evaluates"),
        ({"models/model.json": with_size("Symbol.__class__")}, "evaluates"),
        ({"models/model.json": lambda _: b"{"}, "cannot be looked into"),
    ],
)
def test_what_torch_would_run_counts_as_code(
    plain: Path, tmp_path: Path, edits: dict[str, Edit], why: str
) -> None:
    """Pickles, names outside the operators and expressions that are no sizes."""
    assert why in (why_code(str(edited(plain, tmp_path, edits))) or "")


def test_a_second_file_of_one_name_counts_as_code(plain: Path, tmp_path: Path) -> None:
    """Nobody knows which of the two torch would read."""
    path = edited(plain, tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/models/model.json", b"{}")
    assert "files of one name" in (why_code(str(path)) or "")


def test_a_pickled_constant_counts_as_code(plain: Path, tmp_path: Path) -> None:
    """Objects of custom classes are unpickled when the program is read."""
    path = edited(plain, tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/constants/custom_obj_0", b"x")
    assert "a pickled object" in (why_code(str(path)) or "")


def test_such_an_archive_is_refused_where_code_is(plain: Path, tmp_path: Path) -> None:
    """--allow_model_code=false serves the graph, and not what hides in one."""

    def nowhere(_: Backend) -> Interpreter:
        raise AssertionError("nothing is loaded here")

    registry = default_registry(allow_model_code=False)
    context = LoadContext(nowhere)
    (tmp_path / "good").mkdir()
    edited(plain, tmp_path / "good", {})
    registry.loader(str(tmp_path / "good"), context)
    (tmp_path / "bad").mkdir()
    edited(plain, tmp_path / "bad", {"sample_inputs/model.pt": pickled})
    with pytest.raises(FailedPrecondition, match="allow_model_code"):
        registry.loader(str(tmp_path / "bad"), context)
