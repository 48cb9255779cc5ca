"""The paper's section 5.2: each architecture, packaged, against the unpackaged one."""

from __future__ import annotations

import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.core.conformance.servable import run_task
from tests.models import (
    bert_encoder,
    dlrm,
    mobilenet_v3,
    resnet18,
    seq2seq,
    tacotron,
    tree_lstm,
    unet,
)
from tests.servables.fakes import ID
from tfs.core.errors import ServingError
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.export import save
from tfs.export.values import view_of
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry

Build = Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]

ARCHITECTURES: dict[str, Build] = {
    "dlrm": dlrm.build,
    "mobilenet_v3": mobilenet_v3.build,
    "resnet18": resnet18.build,
    "bert_encoder": bert_encoder.build,
    "seq2seq": seq2seq.build,
    "unet": unet.build,
    "tree_lstm": tree_lstm.build,
    "tacotron": tacotron.build,
}


@pytest.fixture(scope="module")
def inline() -> Iterator[InlineInterpreter]:
    interpreter = InlineInterpreter("inline-models")
    yield interpreter
    interpreter.close()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packaged_model_repeats_the_unpackaged_one_bit_for_bit(
    name: str, tmp_path: Path, inline: InlineInterpreter
) -> None:
    """No model was rewritten for packaging, and none answers differently for it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as in the interpreter: sums depend on how work is split
    module, example = ARCHITECTURES[name]()
    path = save(module, example, tmp_path)
    with zipfile.ZipFile(f"{path}/model.pt") as archive:
        assert f"archive/tests/models/{name}.py" in archive.namelist()
    with torch.inference_mode():
        result = module.eval()(**example)
    loader = default_registry().loader(path, LoadContext(lambda _: inline))
    loader.load(ID)
    inputs = {key: view_of(value) for key, value in example.items()}
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, inputs)
    loader.unload()
    assert not isinstance(outcome, ServingError), outcome
    if isinstance(result, torch.Tensor):
        result = (result,)
    if isinstance(result, tuple):
        result = dict(zip(outcome, result, strict=True))
    assert outcome.keys() == result.keys()
    for key, expected in result.items():
        assert outcome[key] == view_of(expected), key


def test_traceback_of_an_unloaded_model_can_still_be_printed(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """A log line about an old failure must not import the package again."""
    module, example = tree_lstm.build()
    path = save(module, example, tmp_path)
    loader = default_registry().loader(path, LoadContext(lambda _: inline))
    loader.load(ID)
    rootless = {**example, "parents": torch.full((2, 6), -2)}
    inputs = {key: view_of(value) for key, value in rootless.items()}
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, inputs)
    loader.unload()
    assert isinstance(outcome, ServingError)
    assert "a tree has one root" in "".join(traceback.format_exception(outcome))
