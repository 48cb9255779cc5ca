from __future__ import annotations

import pickle
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.conformance.servable import run_task
from tests.servables.fakes import ID, FakeInterpreter
from tests.tensors import floats, floats_of
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    InvalidItems,
    NotFound,
    ServingError,
)
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export import Packaging, save_python
from tfs.export.save_python import write_safetensors
from tfs.runtime.guest.weights import read_safetensors
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.python_model import PythonModel
from tfs.servables.source_reach import MAX_SOURCE_BYTES
from tfs.servables.version_files import VersionDescription
from tfs.servables.version_loader import VersionLoader

SORTING = Path(__file__).parents[1] / "sorting_servable.py"
EXAMPLE = {"numbers": torch.tensor([[2.0, 1, 3], [6, 5, 4]]), "names": ["ann", "bob"]}

Load = Callable[[str], Servable]


@pytest.fixture
def load() -> Iterator[Load]:
    interpreter = InlineInterpreter("inline-python")
    loaders: list[Loader[Servable]] = []

    def loaded(path: str) -> Servable:
        loader = VersionLoader(path, PythonModel(), LoadContext(lambda _: interpreter))
        loader.load(ID)
        loaders.append(loader)
        return loader.servable

    yield loaded
    for loader in loaders:
        loader.unload()
    interpreter.close()


def inputs(
    rows: Sequence[Sequence[float]], names: Sequence[bytes]
) -> dict[str, TensorView]:
    flat = [number for row in rows for number in row]
    return {
        "numbers": TensorView(
            FLOAT32, (len(rows), 3), struct.pack(f"<{len(flat)}f", *flat)
        ),
        "names": TensorView(STRING, (len(names),), tuple(names)),
    }


def test_class_is_validated_prepared_called_and_finished(
    tmp_path: Path, load: Load
) -> None:
    """Each step that the class has runs, in that order, with weights at hand."""
    path = save_python(
        SORTING, tmp_path, weights={"scale": torch.tensor(2.0)}, example_inputs=EXAMPLE
    )
    outcome = run_task(load(path), DEFAULT_SIGNATURE, inputs([[3, 1, 2]], [b"eve"]))
    assert not isinstance(outcome, ServingError), outcome
    assert outcome["sorted"].data == struct.pack("<3f", 2, 4, 6)
    assert outcome["greeting"].data == (b"hello eve",)
    examples = read_manifest(path).signatures[DEFAULT_SIGNATURE].examples
    assert examples["names"].value == (b"ann", b"bob")


def test_authors_file_is_run_to_be_described_and_to_be_loaded(tmp_path: Path) -> None:
    """Whatever it does when it is run happens twice, not once for each question."""
    source, runs = tmp_path / "servable.py", tmp_path / "runs"
    code = SORTING.read_text(encoding="utf-8")
    source.write_text(
        f"{code}\nwith open({str(runs)!r}, 'a') as runs: runs.write('run ')\n"
    )
    save_python(source, tmp_path / "base", example_inputs=EXAMPLE)
    assert runs.read_text().split() == ["run", "run"]


def test_invalid_rows_are_named_and_nothing_is_computed(
    tmp_path: Path, load: Load
) -> None:
    """Whoever joined requests learns which rows to take out, and why."""
    servable = load(save_python(SORTING, tmp_path))
    bad = inputs([[1, 2, 3], [1, -2, 3], [1, 2, 3]], [b"a", b"b", b""])
    outcome = run_task(servable, DEFAULT_SIGNATURE, bad)
    assert isinstance(outcome, InvalidItems)
    assert outcome.rows == {1: "numbers must not be negative", 2: "the name is empty"}
    assert "row 1 is invalid: numbers must not be negative (and 1 more" in str(outcome)
    own = outcome.within(2, 3)
    assert own is not None
    assert own.rows == {0: "the name is empty"}
    assert outcome.within(0, 1) is None
    again = pickle.loads(pickle.dumps(outcome))
    assert (again.rows, again.message) == (outcome.rows, outcome.message)


def test_class_without_manifest_says_its_signatures_itself(
    tmp_path: Path, load: Load
) -> None:
    """A file dropped into a directory is enough; nothing of it runs to describe it."""
    (tmp_path / "servable.py").write_text(SORTING.read_text())
    found = PythonModel().describe(str(tmp_path))
    assert list(found.signatures[DEFAULT_SIGNATURE].inputs) == ["numbers", "names"]
    load(str(tmp_path))


def test_a_link_that_leads_nowhere_keeps_no_version_from_loading(
    tmp_path: Path, load: Load
) -> None:
    """Editors lock files by such links; whoever needs the file says that it is not there."""
    path = save_python(SORTING, tmp_path)
    before = PythonModel().estimate(path)
    Path(path, ".#words.txt").symlink_to("author@host.1234")
    assert PythonModel().estimate(path) == before
    load(path)


OPTIONAL = """
class Servable:
    def predict(self, x, scale):
        return {"y": x * scale}
"""


def test_inputs_that_all_have_defaults_say_how_many_rows_there_are(
    tmp_path: Path, load: Load
) -> None:
    """One that is sent has as many as it has; one that is left out is for all of them."""
    (tmp_path / "servable.py").write_text(OPTIONAL)
    spec, one = TensorSpec(FLOAT32, (-1, 1)), floats((1, 1), 1)
    signature = Signature(
        Method.PREDICT,
        {"x": spec, "scale": spec},
        {"y": spec},
        defaults={"x": one, "scale": one},
    )
    servable = load(
        save_python(
            tmp_path / "servable.py",
            tmp_path / "base",
            signatures={DEFAULT_SIGNATURE: signature},
        )
    )
    found = servable.signatures[DEFAULT_SIGNATURE]
    two = floats((2, 1), 3, 4)
    for sent, y in (
        ({}, one),
        ({"x": two}, two),
        ({"scale": two}, two),
        ({"x": two, "scale": two}, floats((2, 1), 9, 16)),
        ({"x": floats((1, 1), 3)}, floats((1, 1), 3)),
        ({"x": TensorView(FLOAT32, (0, 1), b"")}, TensorView(FLOAT32, (0, 1), b"")),
    ):
        outcome = run_task(servable, DEFAULT_SIGNATURE, found.with_defaults(sent))
        assert not isinstance(outcome, ServingError), (list(sent), outcome)
        assert outcome["y"] == y


SEVERAL = """
class Servable:
    signatures = {
        key: {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
        }
        for key in ("serving_default", "halves")
    }
    methods = {"halves": "halved"}

    def predict(self, x):
        return {"y": x}

    def halved(self, x):
        return {"y": x / 2}
"""


def test_class_says_itself_which_method_answers_a_signature(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """A file with several ways to be called needs no option to be packaged."""
    source = tmp_path / "several.py"
    source.write_text(SEVERAL)
    servable = load(save_python(source, tmp_path / "base"))
    view = TensorView(FLOAT32, (1,), struct.pack("f", 3.0))
    for key, expected in (("serving_default", 3.0), ("halves", 1.5)):
        outcome = run_task(servable, key, {"x": view})
        assert not isinstance(outcome, ServingError), outcome
        assert struct.unpack("f", bytes(outcome["y"].data)) == (expected,)  # type: ignore[arg-type]
    source.write_text(SEVERAL.replace('return {"y": x / 2}', 'return {"z": x / 2}'))
    save_python(source, tmp_path / "base", example_inputs={"x": torch.ones(2)})
    assert "signature=halves" in caplog.text
    assert "did not return output 'y'" in caplog.text
    source.write_text(SEVERAL.replace('{"halves": "halved"}', '{"half": "halved"}'))
    with pytest.raises(InvalidArgument, match="'half', which is no signature"):
        save_python(source, tmp_path / "base")


FIELDS = """
import dataclasses, typing
import torch
class Pair(typing.NamedTuple):
    low: torch.Tensor
    high: torch.Tensor
@dataclasses.dataclass
class Scored:
    low: torch.Tensor
    high: torch.Tensor
    note: str = ""
class Fields:
    signatures = {
        key: {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {
                "high": {"dtype": "float32", "shape": [-1]},
                "low": {"dtype": "float32", "shape": [-1]},
            },
        }
        for key in ("serving_default", "scored", "placed")
    }
    methods = {"scored": "scored", "placed": "placed"}
    def predict(self, x): return Pair(x - 1, x + 1)
    def scored(self, x): return Scored(x - 1, x + 1)
    def placed(self, x): return x + 1, x - 1
"""


@pytest.mark.parametrize("key", [DEFAULT_SIGNATURE, "scored", "placed"])
def test_fields_that_are_named_as_the_outputs_are_those(
    tmp_path: Path, load: Load, key: str
) -> None:
    """Whatever their order: a named tuple by position would swap them, unseen."""
    source = tmp_path / "fields.py"
    source.write_text(FIELDS)
    servable = load(save_python(source, tmp_path / "base"))
    view = TensorView(FLOAT32, (1,), struct.pack("f", 3.0))
    outcome = run_task(servable, key, {"x": view})
    assert not isinstance(outcome, ServingError), outcome
    found = {name: floats_of(each) for name, each in outcome.items()}
    assert found == {"high": [4.0], "low": [2.0]}


LISTENER = """
import socket


class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"x": {"dtype": "float32", "shape": [-1]}},
        }
    }

    def load(self, version):
        self.door = socket.create_server(("127.0.0.1", PORT))

    def predict(self, x):
        return x
"""


def test_a_port_that_another_process_has_is_told_with_what_to_set(
    tmp_path: Path, load: Load
) -> None:
    """A version that opens one runs in one process: trying again would not help."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "servable.py").write_text(LISTENER.replace("PORT", str(port)))
        words = "runtime { num_interpreters: 1 }"
        with pytest.raises(FailedPrecondition, match=re.escape(words)):
            load(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", "one class with predict"),
        ("class A:\n  pass\n", "one class with predict"),
        ("class A:\n  def predict(self): pass\n", "has no signatures"),
        ("raise RuntimeError('boom')\n", "cannot be run: RuntimeError: boom"),
        ("class A:\n  signatures = 3\n  def predict(self): pass\n", "must be a dict"),
    ],
)
def test_file_that_cannot_serve_is_refused_when_saved(
    tmp_path: Path, source: str, message: str
) -> None:
    """The author learns what is missing, and nothing is written."""
    place = tmp_path / "mine.py"
    place.write_text(source)
    with pytest.raises(InvalidArgument, match=message):
        save_python(place, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_load_that_fails_is_refused_when_saved(tmp_path: Path) -> None:
    """The version is loaded once before it appears."""
    place = tmp_path / "mine.py"
    place.write_text(
        SORTING.read_text().replace(
            'scale = version.weights.get("scale")', 'raise OSError("no disk")'
        )
    )
    with pytest.raises(ServingError, match="no disk"):
        save_python(place, tmp_path / "base")
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize("make", ["write", "save_file"])
def test_safetensors_are_read_and_written_as_others_do(
    tmp_path: Path, make: str
) -> None:
    """The reader, which needs no library, agrees with the format's own."""
    tensors = {
        "a": torch.arange(6, dtype=torch.int64).view(2, 3),
        "b": torch.rand(3, dtype=torch.bfloat16),
        "c": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
    }
    path = tmp_path / "weights.safetensors"
    if make == "write":
        write_safetensors(tensors, str(path))
    else:
        save_file(tensors, path)
    ours = read_safetensors(bytearray(path.read_bytes()))
    theirs = load_file(path)
    assert ours.keys() == theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(ours[name], tensor)
        assert torch.equal(theirs[name], tensor)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        b"\x02\0\0\0\0\0\0\0{}"[:9],
        b'\x45\0\0\0\0\0\0\0{"a": {"dtype": "F32", "shape": [4], '
        b'"data_offsets": [0, 16]}}             ',
        b'\x3d\0\0\0\0\0\0\0{"a": {"dtype": "X1", "shape": [0], "data_offsets": [0, 0]}}',
    ],
)
def test_damaged_safetensors_are_refused(data: bytes) -> None:
    """A length that lies leads to an error, not to memory beyond the file."""
    with pytest.raises(ValueError, match=r".+"):
        read_safetensors(bytearray(data))


def test_checkpoint_with_code_in_it_is_refused(tmp_path: Path, load: Load) -> None:
    """weights.pt is read with weights_only: a pickle that runs something is damage."""
    (tmp_path / "servable.py").write_text(SORTING.read_text())
    torch.save({"scale": torch.tensor(3.0)}, tmp_path / "weights.pt")
    load(str(tmp_path))
    with open(tmp_path / "weights.pt", "wb") as file:
        pickle.dump(Path(), file)
    with pytest.raises(DataLoss, match="weights"):
        load(str(tmp_path))
    torch.save({"scale": Fraction(1, 2)}, tmp_path / "weights.pt")
    with pytest.raises(
        DataLoss, match=r"holds a fractions\.Fraction.*assets"
    ) as refused:
        load(str(tmp_path))
    assert "weights_only=False" not in refused.value.message


def test_two_versions_keep_their_modules_apart(tmp_path: Path, load: Load) -> None:
    """Globals of one version are not the other's."""
    text = (
        "COUNT = [0]\n"
        "class Counter:\n"
        "  signatures = {'serving_default': {'method': 'predict',"
        " 'inputs': {'x': {'dtype': 'float32', 'shape': [-1, 3]}},"
        " 'outputs': {'n': {'dtype': 'int64', 'shape': [-1]}}}}\n"
        "  def predict(self, x):\n"
        "    COUNT[0] += 1\n"
        "    return [COUNT[0]] * len(x)\n"
    )
    servables = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "servable.py").write_text(text)
        servables.append(load(str(tmp_path / name)))
    x = {"x": inputs([[1, 2, 3]], [b"a"])["numbers"]}
    counts = []
    for servable in (*servables, servables[0]):
        outcome = run_task(servable, DEFAULT_SIGNATURE, x)
        assert not isinstance(outcome, ServingError), outcome
        counts.append(outcome["n"].data)
    assert counts == [struct.pack("<q", n) for n in (1, 1, 2)]


def test_estimate_counts_everything_beside_the_code(tmp_path: Path) -> None:
    """Weights and assets are what a class is likely to hold in memory."""
    context = LoadContext(lambda _: FakeInterpreter())
    with pytest.raises(NotFound):
        VersionLoader(str(tmp_path), PythonModel(), context).estimate_resources()
    (tmp_path / "servable.py").write_text(SORTING.read_text())
    small = VersionLoader(str(tmp_path), PythonModel(), context).estimate_resources()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "big").write_bytes(bytes(1 << 20))
    large = VersionLoader(str(tmp_path), PythonModel(), context).estimate_resources()
    (more,) = (q for r, q in large.items())
    (less,) = (q for r, q in small.items())
    assert more - less == 2 << 20


@pytest.mark.parametrize("saved", [True, False])
def test_class_says_how_many_requests_it_takes_at_once(
    tmp_path: Path, saved: bool
) -> None:
    """A number in the class, whether or not the version has a manifest."""
    place = tmp_path / "servable.py"
    place.write_text(
        SORTING.read_text().replace(
            "    def load(", "    concurrency = 8\n\n    def load("
        )
    )
    path = save_python(place, tmp_path / "base") if saved else str(tmp_path)
    assert PythonModel().describe(path).entry == {"concurrency": 8}


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("value", ["0", "'8'", "eight()"])
def test_class_that_takes_no_such_number_is_refused(
    tmp_path: Path, saved: bool, value: str
) -> None:
    """A class with a wrong ``concurrency`` is refused before it serves."""
    place = tmp_path / "servable.py"
    place.write_text(
        SORTING.read_text()
        .replace("class Sorting", "def eight():\n    return True\n\n\nclass Sorting")
        .replace("    def load(", f"    concurrency = {value}\n\n    def load(")
    )
    loader = VersionLoader(
        str(tmp_path), PythonModel(), LoadContext(lambda _: FakeInterpreter())
    )

    def make() -> None:
        save_python(place, tmp_path / "b")

    refused = make if saved else partial(loader.load, ID)
    with pytest.raises(InvalidArgument, match="concurrency"):
        refused()


WITH_SIBLING = """
class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
        }
    }

    def load(self, version):
        import own_sibling

        self.plus = own_sibling.PLUS

    def predict(self, x):
        return x + self.plus
"""


def beside(folder: Path, value: int) -> Path:
    """Writes a servable whose modules lie beside it, as of a handler with a model.py."""
    (folder / "nets" / "parts").mkdir(parents=True)
    (folder / "nets" / "__init__.py").write_text("from . import parts\n")
    (folder / "nets" / "parts" / "__init__.py").write_text("")
    (folder / "nets" / "parts" / "plus.py").write_text(
        f"import own_sibling\nVALUE = {value} + own_sibling.NONE\n"
    )
    (folder / "own_sibling.py").write_text(
        "# coding: latin-1\n"
        "NONE = len('\xe9') - 1\n"
        "import nets.parts.plus as plus, json, torch\n"
        "from nets import parts\n"
        "PLUS = plus.VALUE\n",
        encoding="latin-1",
    )
    (folder / "servable.py").write_text(WITH_SIBLING)
    return folder / "servable.py"


def test_a_files_own_modules_come_along_and_belong_to_its_version(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions with a model.py each have their own, and Python has neither."""
    monkeypatch.delitem(sys.modules, "own_sibling", raising=False)
    own = ("own_sibling", "nets", "nets.parts", "nets.parts.plus")
    versions = []
    for value in (1, 2):
        place = beside(tmp_path / str(value), value)
        versions.append(save_python(place, tmp_path / "base"))
        for name in own:
            sys.modules.pop(name, None)
    files = read_manifest(versions[0]).files
    assert {"own_sibling.py", "nets/__init__.py", "nets/parts/plus.py"} <= files.keys()
    servables = [load(path) for path in versions]
    x = {"x": floats((1,), 5)}
    for servable, wanted in zip(servables, (6, 7), strict=True):
        outcome = run_task(servable, DEFAULT_SIGNATURE, x)
        assert not isinstance(outcome, ServingError), outcome
        assert floats_of(outcome["y"]) == [wanted]
    assert not set(own) & sys.modules.keys()
    assert not list(Path(versions[0]).rglob("__pycache__"))


def test_own_modules_that_no_statement_imports_are_named(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the check does not find is asked for, and taken along by its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_sibling", raising=False)
    (tmp_path / "own_sibling.py").write_text("PLUS = 1\n")
    place = tmp_path / "servable.py"
    hidden = WITH_SIBLING.replace(
        "import own_sibling\n", "own_sibling = __import__('own_' + 'sibling')\n"
    )
    place.write_text(hidden)
    with pytest.raises(InvalidArgument, match=r"own_sibling is your own.*include"):
        save_python(place, tmp_path / "base")
    assert not (tmp_path / "base" / "1").exists()
    packaging = Packaging(include=["own_sibling"])
    load(save_python(place, tmp_path / "base", packaging=packaging))


def test_pickles_find_classes_of_the_modules_beside_the_file(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline is pickled where these modules have their plain names."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    (tmp_path / "own_parts.py").write_text("class Doubler: factor = 2\n")
    code = DOUBLES.replace("x * 2", "x * self.doubler.factor")
    (tmp_path / "servable.py").write_text(
        f"import pickle\nimport own_parts\n{code}"
        "    def load(self, version):\n"
        "        with open(version.assets + '/p.pkl', 'rb') as file:\n"
        "            self.doubler = pickle.load(file)\n"
        "        assert type(self.doubler) is own_parts.Doubler\n"
    )
    (tmp_path / "assets").mkdir()
    parts = __import__("own_parts")
    (tmp_path / "assets" / "p.pkl").write_bytes(pickle.dumps(parts.Doubler()))
    assets = tmp_path / "assets"
    load(save_python(tmp_path / "servable.py", tmp_path / "base", assets=assets))


@pytest.mark.parametrize(
    ("weights", "message"),
    [("absent.pt", "no such weights: absent.pt"), ({"a": 3}, "'a' is a int, not a")],
)
def test_weights_that_are_none_are_refused(
    tmp_path: Path, weights: Any, message: str
) -> None:
    """What is wrong with them is said with their name."""
    with pytest.raises(InvalidArgument, match=message):
        save_python(SORTING, tmp_path / "base", weights=weights)


FORM = {
    "method": "predict",
    "inputs": {"x": {"dtype": "float32", "shape": [-1, 2]}},
    "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
}
DOUBLES = f"""
class Servable:
    signatures = {{"serving_default": {FORM}}}
    def predict(self, x): return {{"y": x * 2}}
"""


def by_hand(folder: Path, code: str | bytes) -> str:
    """Writes a version without a manifest; returns its path."""
    (folder / "1").mkdir()
    text = code if isinstance(code, bytes) else code.encode()
    (folder / "1" / "servable.py").write_bytes(text)
    return str(folder / "1")


@pytest.mark.parametrize(
    "code",
    [
        b"\xef\xbb\xbf" + DOUBLES.encode(),
        b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\n" + DOUBLES.encode(),
        f"class Words:\n    def predict(self, x): return x\n{DOUBLES}",
        DOUBLES.replace("Servable", "Base") + "class Servable(Base): pass\n",
    ],
    ids=["byte-order-mark", "latin-1", "another-predict", "derived"],
)
def test_a_file_that_python_runs_is_served(
    tmp_path: Path, load: Load, code: str | bytes
) -> None:
    """In the encoding that it names; and the class with the signatures is meant."""
    x = {"x": TensorView(FLOAT32, (1, 2), struct.pack("<2f", 1, 2))}
    outcome = run_task(load(by_hand(tmp_path, code)), DEFAULT_SIGNATURE, x)
    assert not isinstance(outcome, ServingError), outcome
    assert outcome["y"].data == struct.pack("<2f", 2, 4)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (DOUBLES.replace("self, x", "self, images"), r"predict takes \(images\), but"),
        (DOUBLES.replace("    def", "    async def"), "write def, not async def"),
        (DOUBLES.replace("return", "yield"), "return what it yields"),
        (
            f"{DOUBLES}    def validate(self, row): pass\n",
            r"validate takes \(row\), but .* by name: x",
        ),
        (
            f"{DOUBLES}    def load(self, version): version.weights['w']\n",
            "no weight 'w': without weights.safetensors or weights.pt it has nothing",
        ),
        (DOUBLES + DOUBLES.replace("Servable", "Other"), "found Servable, Other: leave"),
        ("class Servable:\n    def predict(self x): pass\n", "line 2: .* syntax"),
        (DOUBLES.replace("2]", "SIZE]"), "not a plain literal; 'SIZE' is none"),
    ],
    ids=[
        "parameters", "async", "yields", "validate", "weights", "two", "syntax",
        "computed",
    ],
)  # fmt: skip
def test_a_file_whose_calls_would_all_fail_does_not_load(
    tmp_path: Path, load: Load, code: str, message: str
) -> None:
    """It must not take the place of a version that serves, and says what to change."""
    with pytest.raises(ServingError, match=message):
        load(by_hand(tmp_path, code))


def test_a_weight_that_is_missing_is_told_with_those_there_are(
    tmp_path: Path, load: Load
) -> None:
    """A misspelt name is seen at once."""
    code = f"{DOUBLES}    def load(self, version): version.weights['weight']\n"
    path = by_hand(tmp_path, code)
    save_file({"w": torch.ones(1), "b": torch.ones(1)}, f"{path}/weights.safetensors")
    with pytest.raises(ServingError, match=r"no weight 'weight': .* holds b, w"):
        load(path)


def test_what_preprocess_returns_is_named_if_it_has_no_names(
    tmp_path: Path, load: Load
) -> None:
    """Its result is what predict is called with, by name."""
    code = f"{DOUBLES}    def preprocess(self, x): return x, 2\n"
    x = {"x": TensorView(FLOAT32, (1, 2), bytes(8))}
    outcome = run_task(load(by_hand(tmp_path, code)), DEFAULT_SIGNATURE, x)
    assert "preprocess returned a tuple; it returns a dict" in str(outcome)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ("raise ValueError('too large')", "too large"),
        ("{}[int(x)]", "KeyError: 9"),
        ("x.nothing", "AttributeError: 'Tensor' object has no attribute 'nothing'"),
        ("assert False, 'nine'", "AssertionError: nine"),
    ],
)
@pytest.mark.parametrize("step", ["validate", "preprocess"])
def test_whatever_a_step_by_row_raises_is_the_fault_of_its_row(
    tmp_path: Path, load: Load, refusal: str, said: str, step: str
) -> None:
    """Only the request with that row fails, and learns which row and why."""
    code = f"""
class Servable:
    signatures = {{"serving_default": {ONE_NUMBER}}}
    per_item = True
    def {step}(self, x):
        if x == 9:
            {refusal}
        return {{"x": x}}
    def predict(self, x): return {{"y": x * 2}}
"""
    outcome = run_task(
        load(by_hand(tmp_path, code)), DEFAULT_SIGNATURE, {"x": floats((3,), 1, 9, 2)}
    )
    assert isinstance(outcome, InvalidItems)
    assert outcome.rows == {1: said}


ONE_NUMBER = {
    "method": "predict",
    "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
    "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
}


@pytest.mark.parametrize(
    ("prepared", "predicted", "finished"),
    [
        ("{'x': x + 1}", "{'y': x * 2}", "{'y': item['y'] + 3}"),
        ("{'x': x + 1}", "x * 2", "item + 3"),
        ("{'x': x + 1}", "(x * 2,)", "{'y': float(item[0]) + 3}"),
        ("{'x': float(x) + 1}", "[each * 2 for each in x]", "item + 3"),
        ("{'x': x + 1}", "[{'y': each * 2} for each in x]", "item['y'] + 3"),
    ],
)
def test_steps_by_row_are_given_one_row_at_a_time(
    tmp_path: Path, load: Load, prepared: str, predicted: str, finished: str
) -> None:
    """What they return is put together again: tensors of one shape as one tensor."""
    code = f"""
class Servable:
    signatures = {{"serving_default": {ONE_NUMBER}}}
    per_item = True
    def preprocess(self, x): return {prepared}
    def predict(self, x): return {predicted}
    def postprocess(self, item): return {finished}
"""
    outcome = run_task(
        load(by_hand(tmp_path, code)), DEFAULT_SIGNATURE, {"x": floats((3,), 1, 2, 3)}
    )
    assert not isinstance(outcome, ServingError), outcome
    assert floats_of(outcome["y"]) == [7, 9, 11]


def test_steps_by_row_need_rows(tmp_path: Path, load: Load) -> None:
    """A signature without a batch has none."""
    form = {**ONE_NUMBER, "batched": False}
    code = DOUBLES.replace(str(FORM), str(form)) + "    per_item = True\n"
    with pytest.raises(ServingError, match="per_item needs rows"):
        load(by_hand(tmp_path, code))


def test_pickles_find_the_classes_of_the_file(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline with a class of its own is pickled by the name of the file."""
    code = DOUBLES.replace(
        "class Servable:", "class Doubler: factor = 2\nclass Servable:"
    )
    code = "import os, pickle\n" + code.replace("x * 2", "x * self.doubler.factor")
    code += (
        "    def load(self, version):\n"
        "        with open(os.path.join(version.assets, 'p.pkl'), 'rb') as file:\n"
        "            self.doubler = pickle.load(file)\n"
    )
    (tmp_path / "servable.py").write_text(code)
    (tmp_path / "assets").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    servable = __import__("servable")
    (tmp_path / "assets" / "p.pkl").write_bytes(pickle.dumps(servable.Doubler()))
    del sys.modules["servable"]
    path = save_python(
        tmp_path / "servable.py",
        tmp_path / "base",
        assets=tmp_path / "assets",
        example_inputs={"x": torch.ones(1, 2)},
    )
    x = {"x": TensorView(FLOAT32, (1, 2), struct.pack("<2f", 1, 2))}
    outcome = run_task(load(path), DEFAULT_SIGNATURE, x)
    assert not isinstance(outcome, ServingError), outcome
    assert outcome["y"].data == struct.pack("<2f", 2, 4)
    assert "servable" not in sys.modules


SOURCE = '''"""signatures = {"not": "this"}"""
import signatures

signatures = {"nor": "this"}

def helper():
    signatures = {"nor": "that"}

class First:
    """Says nothing: signatures = 1."""

    limit: int = 3

    @signatures.register
    def signatures(self):
        class Inner:
            signatures = {"too": "deep"}

class Second(First):
    text = """
signatures = 2
"""
    other = signatures
    if signatures == other or helper(signatures=1):
        pass
    # signatures = 3
    a = signatures = {
        "serving_default": {  # with a comment
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
        },
    }; concurrency: int = 4

class Third:
    signatures = "late"
'''


def described(folder: Path, text: str | bytes) -> VersionDescription:
    """Writes a source file; returns what it says of the version."""
    path = folder / "servable.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return PythonModel().describe(str(folder))


def test_the_first_class_that_says_it_counts(tmp_path: Path) -> None:
    """What stands elsewhere, in words, functions, inner classes, is not meant."""
    description = described(tmp_path, SOURCE)
    assert list(description.signatures) == ["serving_default"]
    assert description.entry == {"concurrency": 4}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"class A:\n concurrency = 1\0\n", "null byte"),
        (b"class A:\n concurrency = '\xff'\n", "utf-8"),
        ("class A:\n  concurrency = {\n", "line 2: .* was never closed"),
        ("class A:\n  concurrency = 'open\n", "line 2: unterminated"),
        ("class A:\n    y = 1\n  concurrency = 2\n", "unindent"),
        ("class A:\n  concurrency = = 1\n", "invalid syntax"),
        ("class A:\n  concurrency = 1\ndef f(:\n", "line 3: invalid syntax"),
        (
            "class A:\n  concurrency = " + "[" * 300 + "]" * 300 + "\n",
            "too many nested",
        ),
        ("class A:\n  concurrency = " + "-" * 20_000 + "1\n", "nested too deep"),
        # Which of the two depends on Python's recursion limit, which test tools raise.
        (
            "class A:\n  concurrency = " + "1 if 1 else " * 3_000 + "1\n",
            "nested too deep|not a plain literal",
        ),
        (
            "class A:\n  concurrency = open('/etc/passwd')\n",
            "A.concurrency is not a plain literal",
        ),
        ("class A:\n  concurrency = {[]: 1}\n", "A.concurrency is not a plain literal"),
        ("class A:\n  concurrency = " + "9" * 5_000 + "\n", "digits"),
        ("class A:\n  concurrency = '" + "\\'" * 100_000 + "\n", "unterminated"),
        ("#" * (MAX_SOURCE_BYTES + 1), "too many"),
    ],
    ids=range(15),
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    """Whatever the file is, it costs its own version only."""
    with pytest.raises(InvalidArgument, match=words):
        described(tmp_path, text)
