from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.core.conformance.servable import run_task
from tests.models.digits import DigitClassifier
from tests.runtime.process_host import process_host
from tests.servables.fakes import ID, FakeInterpreter
from tfs.core.dtype import FLOAT32
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unavailable,
)
from tfs.core.resources import MAIN, PEAK_RAM_BYTES, RAM_BYTES, Resource
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version.manifest import MANIFEST
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.export.values import view_of
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.servables.measuring.probe import ProbeOptions
from tfs.servables.measuring.probe_subject import ProbeSubject
from tfs.servables.measuring.profiler import Profiler, Profiles
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.model_archive import TorchPackage
from tfs.servables.version_loader import VersionLoader

EXAMPLE = torch.rand(2, 64)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return Path(save(DigitClassifier(), EXAMPLE, tmp_path / "base"))


@pytest.fixture
def inline() -> Iterator[InlineInterpreter]:
    interpreter = InlineInterpreter("inline-test")
    yield interpreter
    interpreter.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_decorated_function_is_compiled_by_nobody(tmp_path: Path) -> None:
    """A decorated function is compiled neither when it is saved nor when it serves."""
    from tests.models.with_compiled import Scales

    x = torch.rand(2, 3)
    path = save(Scales(), x, tmp_path)
    with process_host() as host:
        # Its imports take seconds, at the lowest priority minutes on a busy machine.
        interpreter = host.pool(ProcessOptions(is_urgent=lambda: True))
        loader = VersionLoader(path, TorchPackage(), LoadContext(lambda _: interpreter))
        loader.load(ID)
        outcome = run_task(loader.servable, DEFAULT_SIGNATURE, {"x": view_of(x)})
        loader.unload()
    assert not isinstance(outcome, ServingError), outcome
    assert outcome["output"] == view_of(x * 3)


def test_version_loads_answers_like_the_module_and_unloads(
    tmp_path: Path, inline: InlineInterpreter
) -> None:
    """The version answers as the module, bit for bit, and unloading leaves nothing."""
    module = DigitClassifier()
    path = save(module, EXAMPLE, tmp_path)
    loader = VersionLoader(path, TorchPackage(), LoadContext(lambda _: inline))
    loader.load(ID)
    servable = loader.servable
    signature = servable.signatures[DEFAULT_SIGNATURE]
    finished = threading.Event()
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        finished.set()

    view = TensorView(FLOAT32, (2, 64), EXAMPLE.numpy().tobytes())
    task = InferenceTask(
        DEFAULT_SIGNATURE, signature, {"pixels": view}, done, num_rows=2
    )
    servable.submit(task)
    assert finished.wait(10)
    (outcome,) = outcomes
    assert not isinstance(outcome, ServingError), outcome
    with torch.inference_mode():
        expected = module.eval()(EXAMPLE).numpy().tobytes()
    assert outcome["output"].data == expected
    loader.unload()
    with pytest.raises(FailedPrecondition):
        _ = loader.servable
    assert inline.num_models == 0


def test_interpreter_is_told_everything_about_the_version(version: Path) -> None:
    """Entry, signatures and device reach whatever runs the model."""
    interpreter = FakeInterpreter()
    context = LoadContext(lambda _: interpreter, device="cuda:1", intra_op_threads=4)
    loader = VersionLoader(str(version), TorchPackage(), context)
    loader.load(ID)
    source = interpreter.models[0].source
    assert (source.id, source.path, source.platform) == (
        ID,
        str(version),
        "torch_package",
    )
    assert source.entry == {"package": "model", "resource": "model.pkl"}
    assert (source.device, source.intra_op_threads) == ("cuda:1", 4)
    loader.unload()
    loader.unload()
    assert interpreter.models[0].unloaded == 1


def test_replaced_byte_is_found_before_any_code_runs(version: Path) -> None:
    """Digests are checked at every load; the status names the file."""
    archive = version / "model.pt"
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    interpreter = FakeInterpreter()
    loader = VersionLoader(
        str(version), TorchPackage(), LoadContext(lambda _: interpreter)
    )
    with pytest.raises(DataLoss, match=r"model\.pt"):
        loader.load(ID)
    assert not interpreter.models


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
def test_a_manifest_without_its_payload_says_what_is_missing(
    version: Path, platform: str
) -> None:
    """Neither a payload that nobody listed nor another platform's goes unnamed."""
    form = json.loads((version / MANIFEST).read_text())
    form |= {"files": {}, "platform": platform}
    (version / MANIFEST).write_text(json.dumps(form))
    (version / "model.pt").unlink()
    loader = VersionLoader(
        str(version), TorchPackage(), LoadContext(lambda _: FakeInterpreter())
    )
    name = {"torch_package": "model.pt", "torch_export": "model.pt2"}[platform]
    with pytest.raises(DataLoss, match=f"no {name} in .*platform '{platform}'; write"):
        loader.estimate_resources()


@pytest.mark.parametrize("offset", [8, 1 << 40])
def test_an_example_beyond_its_file_keeps_a_version_from_loading(
    version: Path, offset: int
) -> None:
    """A hand-edited offset would leave the version measured with made-up inputs."""
    form = json.loads((version / MANIFEST).read_text())
    (slot,) = form["signatures"][DEFAULT_SIGNATURE]["example"].values()
    slot["offset"] += offset
    (version / MANIFEST).write_text(json.dumps(form))
    loader = VersionLoader(
        str(version), TorchPackage(), LoadContext(lambda _: FakeInterpreter())
    )
    words = (
        r"'serving_default': the example of input '\w+' ends at byte \d+ of examples"
    )
    with pytest.raises(DataLoss, match=words):
        loader.load(ID)


def test_failed_load_leaves_nothing_and_can_be_repeated(version: Path) -> None:
    """A manager may try again after a passing fault."""
    interpreter = FakeInterpreter(Unavailable("busy"))
    loader = VersionLoader(
        str(version), TorchPackage(), LoadContext(lambda _: interpreter)
    )
    with pytest.raises(Unavailable):
        loader.load(ID)
    with pytest.raises(FailedPrecondition):
        _ = loader.servable
    interpreter.error = None
    loader.load(ID)
    assert loader.servable.id == ID


def test_estimate_is_the_archive_and_its_code(version: Path) -> None:
    """Cheap, the same every time, and at least what is mapped."""
    loader = VersionLoader(
        str(version), TorchPackage(), LoadContext(lambda _: FakeInterpreter())
    )
    first = loader.estimate_resources()
    assert first[Resource(MAIN, RAM_BYTES, 0)] > (version / "model.pt").stat().st_size
    assert loader.estimate_resources() == first


def test_estimate_learns_from_what_was_measured_of_the_same_code(
    tmp_path: Path,
) -> None:
    """Another version with the same code is known to peak, whatever its file's size."""
    paths = [save(DigitClassifier(), EXAMPLE, tmp_path) for _ in range(2)]
    plain = LoadContext(lambda _: FakeInterpreter())
    first, second = (VersionLoader(path, TorchPackage(), plain) for path in paths)
    assert isinstance(first, VersionLoader)
    profile = ModelProfile(
        code_digest=first.code_digest,
        signatures={DEFAULT_SIGNATURE: SignatureProfile(peak_bytes=619 << 20)},
    )
    cache = Profiles()
    cache.put(profile)
    context = LoadContext(lambda _: FakeInterpreter(), profiler=Profiler(cache))
    learned = VersionLoader(paths[1], TorchPackage(), context).estimate_resources()
    assert learned[Resource(MAIN, PEAK_RAM_BYTES, 0)] == 619 << 20
    assert second.estimate_resources()[Resource(MAIN, PEAK_RAM_BYTES, 0)] == 0


def test_interpreters_are_told_what_runs_the_same_code(tmp_path: Path) -> None:
    """Two versions that differ in their weights alone; unless nobody measures code."""
    interpreter = FakeInterpreter()
    for number in (1, 2):
        path = save(DigitClassifier(), EXAMPLE, tmp_path, number)
        for profiler in (Profiler(Profiles(), ProbeOptions(budget_s=0.0)), None):
            context = LoadContext(lambda _: interpreter, profiler=profiler)
            VersionLoader(path, TorchPackage(), context).load(ID)
    first, unknown, second, _ = (m.source.code_digest for m in interpreter.models)
    assert first == second != ""
    assert unknown == ""


def test_an_interpreter_is_told_that_code_was_measured(version: Path) -> None:
    """What loading it changes of a process is looked at once, and known from then on."""
    cache, interpreter = Profiles(), FakeInterpreter()
    profiler = Profiler(cache, ProbeOptions(budget_s=0.0))
    context = LoadContext(lambda _: interpreter, profiler=profiler)
    loader = VersionLoader(str(version), TorchPackage(), context)
    assert isinstance(loader, VersionLoader)
    loader.load(ID)
    cache.put(ModelProfile(loader.code_digest))
    loader.unload()
    loader.load(ID)
    assert [m.source.was_measured for m in interpreter.models] == [False, True]


def test_code_measured_anew_keeps_what_it_changes_of_a_process(version: Path) -> None:
    """Its interpreter was not asked to look at that again, and it stays out of ours."""

    class Noting(Profiler):
        loaded = ModelProfile()

        def profile(
            self,
            servable_id: ServableId,
            path: str,
            subject: ProbeSubject,
            loaded: ModelProfile,
        ) -> None:
            self.loaded = loaded

    cache = Profiles()
    profiler = Noting(cache)
    context = LoadContext(lambda _: FakeInterpreter(), profiler=profiler)
    loader = VersionLoader(str(version), TorchPackage(), context)
    assert isinstance(loader, VersionLoader)
    cache.put(ModelProfile(loader.code_digest, process_changes="the locale"))
    loader.load(ID)
    assert profiler.loaded.process_changes == "the locale"


def test_archive_without_manifest_needs_signatures_beside_it(version: Path) -> None:
    """Signatures written by hand make any torch.package archive servable."""
    signatures = json.loads((version / MANIFEST).read_text())["signatures"]
    (version / MANIFEST).unlink()
    with pytest.raises(InvalidArgument, match=r"signatures\.json"):
        TorchPackage().describe(str(version))
    (version / "signatures.json").write_text(json.dumps(signatures))
    found = TorchPackage().describe(str(version))
    assert list(found.signatures) == [DEFAULT_SIGNATURE]
    assert found.entry == {"package": "model", "resource": "model.pkl"}


def test_a_key_that_is_there_twice_in_signatures_json_is_refused(
    version: Path,
) -> None:
    """Python's reader would serve the last of both without a word."""
    signatures = json.loads((version / MANIFEST).read_text())["signatures"]
    (version / MANIFEST).unlink()
    form = json.dumps(signatures[DEFAULT_SIGNATURE])
    (version / "signatures.json").write_text(f'{{"a": {form}, "a": {form}}}')
    with pytest.raises(DataLoss, match=r"signatures\.json: the key 'a' is there"):
        TorchPackage().describe(str(version))


def test_only_pickle_of_a_foreign_archive_is_its_entry(tmp_path: Path) -> None:
    """An archive written without TFS is served if there is no doubt what to load."""
    from torch.package.package_exporter import PackageExporter

    with PackageExporter(str(tmp_path / "model.pt")) as exporter:
        exporter.intern("tests.models.digits")
        exporter.save_pickle("nets.v1", "digits.pkl", DigitClassifier())
    (tmp_path / "signatures.json").write_text(
        json.dumps(
            {
                DEFAULT_SIGNATURE: {
                    "method": "predict",
                    "inputs": {"pixels": {"dtype": "float32", "shape": [-1, 64]}},
                    "outputs": {"scores": {"dtype": "float32", "shape": [-1, 10]}},
                }
            }
        )
    )
    found = TorchPackage().describe(str(tmp_path))
    assert found.entry == {"package": "nets.v1", "resource": "digits.pkl"}


def test_wrong_platform_in_the_manifest_is_refused(version: Path) -> None:
    """A configuration that names another platform than the version's is a mistake."""
    form = json.loads((version / MANIFEST).read_text())
    form["platform"] = "torchscript"
    (version / MANIFEST).write_text(json.dumps(form))
    assert read_manifest(str(version)).platform == "torchscript"
    with pytest.raises(InvalidArgument, match="leave model_platform out"):
        TorchPackage().describe(str(version))
