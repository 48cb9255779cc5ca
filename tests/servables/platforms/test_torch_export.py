from __future__ import annotations

import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.core.conformance.servable import run_task
from tests.models.digits import DigitClassifier
from tests.servables.fakes import ID
from tfs.core.dtype import FLOAT32, INT64
from tfs.core.errors import DataLoss, InvalidArgument, ServingError
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.signature import DEFAULT_SIGNATURE, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.export import Signature, save
from tfs.export.values import view_of
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.model_archive import TorchScript
from tfs.servables.platforms.torch_export import TorchExport, read_exported_signature
from tfs.servables.version_loader import VersionLoader

PIXELS = torch.rand(2, 64)
QUICK_TO_COMPILE = {
    # The compiler otherwise finds out what the processor can do by compiling for it,
    # and compiles headers for the versions to come.
    "cpp.vec_isa_ok": True,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


class TwoInputs(nn.Module):
    def forward(
        self, tokens: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = tokens * scale
        return scaled.sum(1), scaled


@pytest.fixture
def inline() -> Iterator[InlineInterpreter]:
    interpreter = InlineInterpreter("inline-export")
    yield interpreter
    interpreter.close()


def answered(
    platform: TorchExport | TorchScript, path: str, inline: InlineInterpreter
) -> dict[str, TensorView]:
    loader = VersionLoader(path, platform, LoadContext(lambda _: inline))
    loader.load(ID)
    view = TensorView(FLOAT32, (2, 64), PIXELS.numpy().tobytes())
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, {"pixels": view})
    loader.unload()
    assert not isinstance(outcome, ServingError), outcome
    return dict(outcome)


def assert_close(view: TensorView, expected: torch.Tensor) -> None:
    assert isinstance(view.data, bytes)
    found = torch.frombuffer(bytearray(view.data), dtype=torch.float32)
    torch.testing.assert_close(found.view(expected.shape), expected)


def test_graphs_are_loaded_side_by_side(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """torch's reader of graphs is one per process; versions that wait for it load."""
    path = save(DigitClassifier(), PIXELS, tmp_path, platform="torch_export")
    loaders = [
        VersionLoader(path, TorchExport(), LoadContext(lambda _: inline))
        for _ in range(6)
    ]
    at_once = threading.Barrier(len(loaders))

    def load(loader: Loader[Servable]) -> None:
        at_once.wait()
        loader.load(ID)

    with ThreadPoolExecutor(len(loaders)) as threads:
        list(threads.map(load, loaders))
    for loader in loaders:
        loader.unload()


@pytest.mark.parametrize(
    "platform",
    [
        "torch_export",
        "torchscript",
        pytest.param(
            "aotinductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    shutil.which("g++") is None,
                    reason="AOTInductor compiles with g++, which is not here",
                ),
            ],
        ),
    ],
)
def test_graph_gives_the_modules_numbers(
    tmp_path: Path,
    inline: InlineInterpreter,
    platform: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module saved as a graph answers as it did, up to rounding."""
    from torch._inductor import config

    monkeypatch.setattr("sys.path", [*sys.path])  # to which the compiler adds
    module = DigitClassifier()
    with config.patch(QUICK_TO_COMPILE):
        path = save(module, PIXELS, tmp_path, platform=platform)
    served = TorchScript() if platform == "torchscript" else TorchExport()
    outputs = answered(served, path, inline)
    assert_close(outputs["output"], module.eval()(PIXELS).detach())


def test_exported_program_tells_its_signature_without_a_manifest(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """A .pt2 file written without TFS, dropped into a directory, is served."""
    module = DigitClassifier().eval()
    program = torch.export.export(
        module, (PIXELS,), dynamic_shapes={"pixels": {0: torch.export.Dim("b")}}
    )
    torch.export.save(program, tmp_path / "model.pt2")
    (signature,) = TorchExport().describe(str(tmp_path)).signatures.values()
    assert signature.inputs == {"pixels": TensorSpec(FLOAT32, (-1, 64))}
    assert signature.outputs == {"output": TensorSpec(FLOAT32, (-1, 10))}
    assert signature.batched
    outputs = answered(TorchExport(), str(tmp_path), inline)
    assert_close(outputs["output"], module(PIXELS).detach())


class Heated(nn.Module):
    """Divides each row by its heat."""

    def forward(self, x: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        return (x / heat).softmax(-1)


@pytest.mark.parametrize("rows", [1, 2])
def test_optional_input_of_a_graph_is_sent_or_left_out_for_any_number_of_rows(
    tmp_path: Path, inline: InlineInterpreter, rows: int
) -> None:
    """A graph does not broadcast: a default of one row is repeated for it."""
    path = save(
        Heated(),
        Signature(
            {"x": torch.rand(2, 3), "heat": torch.ones(rows, 1)},
            defaults={"heat": torch.full((1, 1), 2.0)},
        ),
        tmp_path,
        platform="torch_export",
    )
    loader = VersionLoader(path, TorchExport(), LoadContext(lambda _: inline))
    loader.load(ID)
    for num_rows in (1, 3, 4):
        x, heat = torch.rand(num_rows, 3), torch.rand(num_rows, 1) + 1
        for inputs, divisor in (({}, torch.tensor(2.0)), ({"heat": heat}, heat)):
            views = {n: view_of(v) for n, v in {"x": x, **inputs}.items()}
            signature = loader.servable.signatures[DEFAULT_SIGNATURE]
            outcome = run_task(
                loader.servable, DEFAULT_SIGNATURE, signature.with_defaults(views)
            )
            assert not isinstance(outcome, ServingError), outcome
            assert_close(outcome["output"], (x / divisor).softmax(-1))
    loader.unload()


def test_sizes_that_a_graph_excludes_are_the_callers_mistake(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """Excluded sizes are INVALID_ARGUMENT; the answer names inputs and valid sizes."""
    batch = torch.export.Dim("b", max=4)
    program = torch.export.export(
        DigitClassifier().eval(), (PIXELS,), dynamic_shapes={"pixels": {0: batch}}
    )
    torch.export.save(program, tmp_path / "model.pt2")
    loader = VersionLoader(str(tmp_path), TorchExport(), LoadContext(lambda _: inline))
    loader.load(ID)
    inputs = {"pixels": view_of(torch.rand(5, 64))}
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, inputs)
    loader.unload()
    assert isinstance(outcome, InvalidArgument)
    assert "'pixels' [5, 64]" in outcome.message
    assert "<= 4" in outcome.message


def test_signature_of_a_program_with_free_inner_sizes(tmp_path: Path) -> None:
    """Symbols become free dimensions; without a common first one there is no batch."""
    batch, length = torch.export.Dim("b"), torch.export.Dim("n")
    tokens, scale = torch.ones(2, 5, dtype=torch.int64), torch.rand(2, 5)
    program = torch.export.export(
        TwoInputs(),
        (tokens, scale),
        dynamic_shapes={
            "tokens": {0: batch, 1: length},
            "scale": {0: batch, 1: length},
        },
    )
    torch.export.save(program, tmp_path / "free.pt2")
    signature = read_exported_signature(str(tmp_path / "free.pt2"))
    assert signature.batched
    assert signature.inputs["tokens"] == TensorSpec(INT64, (-1, -1))
    assert list(signature.outputs) == ["output_0", "output_1"]
    fixed = torch.export.export(TwoInputs(), (tokens, scale))
    torch.export.save(fixed, tmp_path / "fixed.pt2")
    signature = read_exported_signature(str(tmp_path / "fixed.pt2"))
    assert not signature.batched
    assert signature.inputs["tokens"].shape == (2, 5)


class Sorted(nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"shifted": x + k.sum(1, keepdim=True), "a": x * 2}


def test_outputs_of_a_program_have_the_names_of_its_dict(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """A program that returns a dict is served by its keys, without a manifest."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        Sorted(), (PIXELS, PIXELS), dynamic_shapes=({0: rows}, {0: rows})
    )
    torch.export.save(program, tmp_path / "model.pt2")
    signature = read_exported_signature(str(tmp_path / "model.pt2"))
    assert list(signature.outputs) == ["shifted", "a"]
    loader = VersionLoader(str(tmp_path), TorchExport(), LoadContext(lambda _: inline))
    loader.load(ID)
    view = TensorView(FLOAT32, (2, 64), PIXELS.numpy().tobytes())
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, {"x": view, "k": view})
    loader.unload()
    assert not isinstance(outcome, ServingError), outcome
    assert_close(outcome["a"], PIXELS * 2)
    assert_close(outcome["shifted"], PIXELS + PIXELS.sum(1, keepdim=True))


class Nested(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        return {"a": {"b": x + 1}}


def test_program_with_nested_outputs_asks_for_a_signature(tmp_path: Path) -> None:
    """Outputs inside of something nested have no name a caller could use."""
    program = torch.export.export(Nested(), (PIXELS,))
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(InvalidArgument, match=r"nested.*signatures\.json"):
        read_exported_signature(str(tmp_path / "model.pt2"))


def test_only_compiled_programs_run_code(tmp_path: Path) -> None:
    """A graph cannot do anything but compute; machine code can."""
    path = save(DigitClassifier(), PIXELS, tmp_path, platform="torch_export")
    assert not TorchExport().runs_code(path)


@torch.library.custom_op("tfs_tests::tripled", mutates_args=())
def tripled(rows: torch.Tensor) -> torch.Tensor:
    return rows * 3


@tripled.register_fake
def _(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(rows)


class CallsOwnOperator(nn.Module):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.ops.tfs_tests.tripled(pixels)  # type: ignore[no-any-return]


@pytest.mark.parametrize("platform", ["torch_export", "torchscript"])
def test_operator_that_servers_lack_is_refused_when_it_is_saved(
    tmp_path: Path, platform: str
) -> None:
    """The author's program has registered it; nothing does on a server."""
    with pytest.raises(InvalidArgument, match=r"tfs_tests::tripled.*torch_package"):
        save(CallsOwnOperator(), PIXELS, tmp_path, platform=platform)


class TwoMethods(nn.Module):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels * 2

    def halved(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels / 2


def test_method_that_scripting_leaves_out_is_named_with_the_way_to_keep_it(
    tmp_path: Path,
) -> None:
    """torch.jit.script takes forward alone, and says nothing of the others."""
    more = {"half": Signature(PIXELS, call="halved")}
    with pytest.raises(InvalidArgument, match=r"without halved.*@torch\.jit\.export"):
        save(TwoMethods(), PIXELS, tmp_path, signatures=more, platform="torchscript")


def test_missing_operator_is_named_by_the_server(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """A graph or script dropped by hand says which operator it would need."""
    program = torch.export.export(CallsOwnOperator(), (PIXELS,))
    path = tmp_path / "1"
    path.mkdir()
    torch.export.save(program, path / "model.pt2")
    with zipfile.ZipFile(path / "model.pt2") as archive:
        entries = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path / "model.pt2", "w") as archive:
        for each, content in entries.items():
            archive.writestr(each, content.replace(b"tripled", b"quadrup"))
    loader = VersionLoader(str(path), TorchExport(), LoadContext(lambda _: inline))
    with pytest.raises(DataLoss, match=r"operator tfs_tests::quadrup.*torch_package"):
        loader.load(ID)


class CountsRows(nn.Module):
    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        return nodes * len([0 for _ in range(nodes.shape[0])])


def test_graph_that_takes_one_size_is_refused_where_callers_may_choose(
    tmp_path: Path,
) -> None:
    """torch.export fixes sizes without a word; clients would be refused for it."""
    with pytest.raises(InvalidArgument, match="dimension 0 of 'nodes' is 5"):
        save(
            CountsRows(),
            torch.rand(5, 3),
            tmp_path,
            batched=False,
            dynamic={"nodes": [0]},
            platform="torch_export",
        )


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_graphs_largest_batch_is_known_before_it_runs(
    tmp_path: Path, by_hand: bool
) -> None:
    """A program's own limit of rows holds whoever wrote its signature."""
    program = torch.export.export(
        nn.Linear(64, 3).eval(), (PIXELS,), dynamic_shapes=({0: Dim("rows", max=8)},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    if by_hand:
        spec = '{"dtype": "float32", "shape": [-1, %d]}'
        (tmp_path / "signatures.json").write_text(
            '{"serving_default": {"method": "predict", "inputs": {"input": '
            f'{spec % 64}}}, "outputs": {{"output": {spec % 3}}}}}}}'
        )
    description = TorchExport().describe(str(tmp_path))
    assert description.signatures[DEFAULT_SIGNATURE].max_rows == 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiling_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    """torch speaks of a setting of its own compiler."""
    from torch._inductor import config

    with (
        config.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(
            InvalidArgument, match=r"without a C\+\+ compiler: install g\+\+"
        ),
    ):
        save(Adds(), torch.rand(2, 3), tmp_path, platform="aotinductor")


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor(0.4182)
