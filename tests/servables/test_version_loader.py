"""tfs.servables.version_loader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.core.conformance.servable import example_inputs, run_task
from tests.e2e.serving import export_scale
from tests.models.needs_file import NeedsFile
from tests.models.with_state import Counts
from tests.servables.placed_host import Host
from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.export import save
from tfs.export.values import view_of
from tfs.runtime.placement import Backend
from tfs.servables.loaded_version import LoadedVersion
from tfs.servables.version_files import code_digest

ID = ServableId("scale", 1)
QUICK = SignatureProfile(True, call_s_by_rows={1: 1e-5}, full_batch_s=1e-5)
SLOW = SignatureProfile(True, call_s_by_rows={1: 1e-2}, full_batch_s=1e-2)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_scale(tmp_path_factory.mktemp("placed") / "scale", 1)


def know(host: Host, version: Path, signature: SignatureProfile) -> None:
    host.cache.put(
        ModelProfile(
            code_digest(str(version)),
            import_s=0.001,
            two_thread_scaling=0.5,
            signatures={DEFAULT_SIGNATURE: signature},
        )
    )


def answers(servable: Servable) -> bool:
    inputs = example_inputs(servable.signatures[DEFAULT_SIGNATURE], 2)
    outcome = run_task(servable, DEFAULT_SIGNATURE, inputs)
    return not isinstance(outcome, ServingError) and outcome["y"].shape == (2, 2)


def test_code_never_seen_serves_in_a_process_unbatched(
    host: Host, version: Path
) -> None:
    """Without a profile and without a budget the static defaults hold, and it says so."""
    loader = host.loader(version)
    loader.load(ID)
    assert host.num_models(Backend.PROCESS) == 1
    assert host.batched == [(Backend.PROCESS, False)]
    assert host.notes == ["runs in process: not measured yet"]
    assert answers(loader.servable)
    loader.unload()
    assert host.num_models(Backend.PROCESS) == 0


def test_known_quick_code_goes_straight_to_the_front(host: Host, version: Path) -> None:
    """A profile decides before anything is loaded: no process is used."""
    know(host, version, QUICK)
    loader = host.loader(version)
    loader.load(ID)
    assert host.num_models(Backend.FRONT) == 1
    assert Backend.PROCESS not in host.interpreters
    assert host.batched == [(Backend.FRONT, True)]
    assert "a full batch takes 10 us" in host.notes[0]
    assert answers(loader.servable)
    loader.unload()


def test_code_is_measured_in_a_process_before_it_is_placed(version: Path) -> None:
    """With a budget the load ends with a profile, kept for the next version."""
    host = Host(budget_s=0.2)
    loader = host.loader(version)
    loader.load(ID)
    assert Backend.PROCESS in host.interpreters
    ((_, was_measured),) = host.batched
    assert was_measured
    assert answers(loader.servable)
    loader.unload()
    assert all(host.num_models(backend) == 0 for backend in host.interpreters)
    host.close()


def test_a_model_that_remembers_its_calls_serves_as_it_was_saved(
    tmp_path: Path,
) -> None:
    """What measuring it left behind reaches no client, of its next version neither."""
    x = torch.rand(2, 3)
    path = save(Counts(), x, tmp_path)
    host = Host(budget_s=0.2)
    for _ in range(2):
        loader = host.loader(Path(path))
        loader.load(ID)
        inputs = {"x": view_of(x)}
        outcome = run_task(loader.servable, DEFAULT_SIGNATURE, inputs)
        assert not isinstance(outcome, ServingError), outcome
        assert outcome["output"] == view_of(x + 1)
        assert "serves as it was saved" in host.notes.pop()
        loader.unload()
    host.close()


@pytest.mark.parametrize("is_slow_at_once", [True, False])
def test_a_version_too_slow_for_the_loop_moves_to_a_process(
    host: Host, version: Path, is_slow_at_once: bool
) -> None:
    """A version moves to a process even if a call of the load showed it to be slow."""
    host.is_slow_at_once = is_slow_at_once
    know(host, version, QUICK)
    loader = host.loader(version)
    loader.load(ID)
    servable = loader.servable
    assert host.notes[0].startswith("runs in front")
    assert host.leave_front is not None
    if not is_slow_at_once:
        assert host.num_models(Backend.FRONT) == 1
        host.leave_front(0.02)
    assert host.num_models(Backend.FRONT) == 0
    assert host.num_models(Backend.PROCESS) == 1
    assert host.notes[-1].startswith("runs in process: a full batch takes 20000 us")
    assert answers(servable)
    host.leave_front(0.02)
    assert len(host.notes) == 2
    # What the load found out is of what it loads, whatever serves under its id.
    assert len(host.notes_of_loads) == (2 if is_slow_at_once else 1)
    loader.unload()
    host.leave_front(0.02)
    assert host.num_models(Backend.PROCESS) == 0


def test_a_place_that_cannot_be_had_fails_the_load_and_leaves_nothing(
    host: Host, version: Path
) -> None:
    """When moving fails, the version is gone from where it was."""
    know(host, version, SLOW)
    host.refuse = FailedPrecondition("no threads here")
    loader = host.loader(version)
    loader.load(ID)  # slow code stays in the process: nothing is refused
    loader.unload()
    know(host, version, QUICK)
    loader = host.loader(version)
    with pytest.raises(FailedPrecondition):
        loader.load(ID)
    assert host.num_models(Backend.PROCESS) == 0


def test_a_failing_move_keeps_the_version_where_it_is(
    host: Host, version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late move that fails is logged; the version serves on from its old place."""
    know(host, version, QUICK)
    loader = host.loader(version)
    loader.load(ID)

    def refuse(_: object) -> None:
        raise Internal("broken")

    monkeypatch.setattr(host.of(Backend.PROCESS), "load", refuse)
    assert host.leave_front is not None
    host.leave_front(0.02)
    assert host.num_models(Backend.FRONT) == 1
    assert answers(loader.servable)
    loader.unload()


def test_an_unloaded_version_has_no_servable(host: Host, version: Path) -> None:
    """The servable belongs between load and unload."""
    loader = host.loader(version)
    with pytest.raises(FailedPrecondition):
        _ = loader.servable
    loader.load(ID)
    loader.unload()
    with pytest.raises(FailedPrecondition):
        _ = loader.servable


def concurrent_version(folder: Path) -> Path:
    scale = Path(export_scale(folder / "scale", 1))
    manifest = scale / "servable.json"
    form = json.loads(manifest.read_text())
    form["entry"]["concurrency"] = 4
    manifest.write_text(json.dumps(form))
    return scale


def test_a_version_that_joins_requests_itself_gets_them_on_one_interpreter(
    host: Host, tmp_path: Path
) -> None:
    """It is not batched before it, and its status says so; its profile still counts."""
    path = concurrent_version(tmp_path)
    know(host, path, SLOW)
    loader = host.loader(path)
    loader.load(ID)
    assert host.num_models(Backend.INLINE) == 1
    assert host.batched == []
    assert host.notes == [
        "runs in inline: it takes 4 requests at once and joins them; "
        "its requests are not joined before it"
    ]
    assert answers(loader.servable)
    loader.unload()


def test_a_version_that_joins_requests_itself_is_measured_in_a_process_first(
    tmp_path: Path,
) -> None:
    """Code never seen keeps out of the server process, and joins its requests there."""
    host = Host()
    path = concurrent_version(tmp_path)
    loader = host.loader(path)
    loader.load(ID)
    assert host.num_models(Backend.PROCESS) == 1
    assert host.batched == []
    loader.unload()
    host.close()


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A version that fails on the example it was saved with."""
    words = tmp_path / "words.txt"
    words.touch()
    path = save(NeedsFile(str(words)), torch.rand(2, 3), tmp_path / "m")
    words.unlink()
    return Path(path)


def test_a_version_that_fails_on_its_own_example_replaces_nothing(
    broken: Path,
) -> None:
    """What the server has seen fail is not loaded while another version answers."""
    host = Host(budget_s=0.2)
    host.is_covered = True
    loader = host.loader(broken)
    with pytest.raises(FailedPrecondition, match=r"own example: .*words.txt.*gate"):
        loader.load(ID)
    assert not host.faults
    assert all(host.num_models(backend) == 0 for backend in host.interpreters)
    host.close()


def test_a_version_that_fails_on_its_own_example_serves_alone_with_a_fault(
    broken: Path,
) -> None:
    """Where nothing else answers it serves what it can, and is shown not to be well."""
    host = Host(budget_s=0.2)
    loader = host.loader(broken)
    loader.load(ID)
    ((faulty, told, is_loading),) = host.faults
    assert (faulty, is_loading) == (ID, True)
    assert "fails on its own example" in told
    loader.unload()
    host.close()


def test_who_wants_it_gets_versions_that_fail_on_their_example(broken: Path) -> None:
    """Without the gate it replaces another, and is no fault; the status still tells."""
    host = Host(budget_s=0.2)
    host.is_covered, host.gates_examples = True, False
    loader = host.loader(broken)
    loader.load(ID)
    assert not host.faults
    servable = loader.servable
    assert isinstance(servable, LoadedVersion)
    assert DEFAULT_SIGNATURE in servable.example_errors
    loader.unload()
    host.close()


def test_code_that_reaches_beyond_python_never_runs_in_the_server(
    host: Host, tmp_path: Path
) -> None:
    """However quick it is known to be; the note says where it reaches."""
    (tmp_path / "servable.py").write_text(
        "import ctypes\n\n"
        "class Doubled:\n"
        "    def predict(self, x):\n"
        "        return {'y': x * 2}\n"
    )
    signature = {
        "inputs": {"x": {"dtype": "float32", "shape": [-1, 2]}},
        "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
    }
    (tmp_path / "signatures.json").write_text(
        json.dumps({"serving_default": {"method": "predict", **signature}})
    )
    know(host, tmp_path, QUICK)
    loader = host.loader(tmp_path)
    loader.load(ID)
    assert host.notes == ["runs in process: servable.py imports ctypes (line 1)"]
    assert host.num_models(Backend.PROCESS) == 1
    assert answers(loader.servable)
    loader.unload()


def test_versions_of_one_code_are_measured_once_and_share_the_profile(
    tmp_path: Path,
) -> None:
    """One version is measured in a process, so a thousand need no process each."""
    host = Host(budget_s=0.2)
    loaders = [
        host.loader(export_scale(tmp_path / "scale", number)) for number in range(1, 4)
    ]
    for number, loader in enumerate(loaders, 1):
        loader.load(ServableId("scale", number))
    assert len({each.code_digest for each in loaders}) == 1
    ((backend, was_measured),) = {*host.batched}
    assert was_measured
    assert host.num_models(backend) == 3
    for loader in loaders:
        loader.unload()
    host.close()


@pytest.mark.parametrize("error", [DeadlineExceeded, ResourceExhausted, Unavailable])
def test_an_example_that_may_work_another_time_is_tried_again(
    version: Path, monkeypatch: pytest.MonkeyPatch, error: type[ServingError]
) -> None:
    """The load fails as one that is retried; alone, such a version is not called faulty."""
    found = {DEFAULT_SIGNATURE: error("not now")}
    monkeypatch.setattr(
        "tfs.servables.version_loader.failing_examples", lambda *_: found
    )
    host = Host(budget_s=0.2)
    host.is_covered = True
    loader = host.loader(version)
    with pytest.raises(Unavailable, match="own example: not now"):
        loader.load(ID)
    host.is_covered = False
    loader.load(ID)
    assert host.faults == []
    loader.unload()
    host.close()


def test_a_version_that_cannot_answer_its_recorded_requests_is_not_loaded(
    host: Host, version: Path, tmp_path: Path
) -> None:
    """They come last, of every platform; after a failure nothing is left behind."""
    (tmp_path / "table.csv").write_text("item,price:float32\ns0,1\n")
    for path in (version, tmp_path):
        loader = host.loader(path)
        host.replay_error = Internal("record 1: broken")
        with pytest.raises(Internal, match="record 1"):
            loader.load(ID)
        assert host.replayed.pop() == (ID, str(path))
        with pytest.raises(FailedPrecondition):
            _ = loader.servable
        assert all(host.num_models(backend) == 0 for backend in host.interpreters)
        host.replay_error = None
        loader.load(ID)
        assert loader.servable.id == ID
        loader.unload()
