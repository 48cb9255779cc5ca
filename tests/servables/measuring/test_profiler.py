from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.models.digits import DigitClassifier
from tests.models.greedy import Greedy
from tests.present import present
from tests.runtime.process_host import process_host
from tests.servables.fakes import ID
from tests.servables.measuring.fake_subject import (
    FakeSubject,
    Remembering,
    centred,
    doubled,
)
from tests.threads import run_together
from tfs.core.errors import Internal
from tfs.core.resources import MAIN, PEAK_RAM_BYTES, Resource
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.model_profile import ModelProfile
from tfs.export import save
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.servables.measuring import probe as probe_module
from tfs.servables.measuring.probe import ProbeOptions
from tfs.servables.measuring.profiler import Profiler, Profiles
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry
from tfs.servables.version_loader import VersionLoader


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether others use the processors must not decide these tests."""
    monkeypatch.setattr(probe_module, "foreign_share", lambda *_: 0.0)


class Wanted:
    """A profiler over a fake model."""

    def __init__(self, path: Path, budget_s: float = 0.5) -> None:
        self.subject = FakeSubject(doubled)
        self.path = path
        self.kept = path / "state" / "profiles"
        self.profiler = Profiler(
            Profiles(str(path / "state")),
            ProbeOptions(budget_s, 8),
            clock=self.subject.clock,
        )

    def profile(self, version: int = 1) -> ModelProfile | None:
        """Forgets what was called before, and profiles a version."""
        self.subject.calls.clear()
        loaded = ModelProfile("d", load_s=0.1)
        servable_id = ServableId("m", version)
        return self.profiler.profile(servable_id, str(self.path), self.subject, loaded)


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    return Wanted(tmp_path)


def test_second_version_of_the_same_code_is_rehearsed_and_not_measured(
    wanted: Wanted,
) -> None:
    """What was measured once holds for other weights, but for how these treat rows.

    A fresh process's first calls take long, so they are made beside what serves.
    """
    first = present(wanted.profile(1))
    assert first.signatures[DEFAULT_SIGNATURE].rows_independent
    assert wanted.profile(2) is first
    rehearsed = f"{DEFAULT_SIGNATURE} rehearsed"
    assert wanted.subject.calls == [
        *((rehearsed, rows) for rows in (2, 1, 8)),
        (DEFAULT_SIGNATURE, 2),
        (DEFAULT_SIGNATURE, 1),
    ]


@pytest.mark.parametrize("row_s", [0.1, 0.2])
def test_calls_that_take_longer_than_the_budget_are_not_rehearsed(
    wanted: Wanted, row_s: float
) -> None:
    """A load does not wait for a large batch for the sake of the first one to come."""
    wanted.subject.row_s = row_s
    assert wanted.profile(1) is not None
    assert wanted.profile(2) is not None
    assert (f"{DEFAULT_SIGNATURE} rehearsed", 8) not in wanted.subject.calls


def test_code_that_remembers_its_calls_is_not_called_again(wanted: Wanted) -> None:
    """Code that remembers its calls is not called, or clients would get the traces."""
    wanted.subject.function = Remembering()
    first = present(wanted.profile(1))
    assert not first.is_repeatable
    assert wanted.profile(2) is first
    assert wanted.subject.calls == []


def test_other_weights_may_connect_rows(wanted: Wanted) -> None:
    """A coefficient that was zero hid what the code does; known code is no proof."""
    assert wanted.profile(1) is not None
    wanted.subject.function = centred
    second = present(wanted.profile(2))
    found = second.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert "when it was alone" in found.why_dependent
    wanted.subject.function = doubled
    third = present(wanted.profile(3))
    assert third.signatures[DEFAULT_SIGNATURE].rows_independent is True


def test_what_one_version_could_not_show_another_may(wanted: Wanted) -> None:
    """Weights of zero give every row the same answer, and the next version's do not."""
    wanted.subject.function = lambda rows: [(0.0, 0.0)] * len(rows)
    first = present(wanted.profile(1))
    assert first.signatures[DEFAULT_SIGNATURE].rows_independent is None
    wanted.subject.function = doubled
    second = present(wanted.profile(2))
    assert second.signatures[DEFAULT_SIGNATURE].rows_independent is True


def test_budget_of_zero_wants_no_profile(tmp_path: Path) -> None:
    """Turned off means that nothing is called and nothing is known."""
    wanted = Wanted(tmp_path, budget_s=0)
    assert wanted.profile() is None
    assert wanted.subject.calls == []


def busy(monkeypatch: pytest.MonkeyPatch, wanted: Wanted) -> None:
    monkeypatch.setattr(probe_module, "foreign_share", lambda *_: 0.9)


def failing(monkeypatch: pytest.MonkeyPatch, wanted: Wanted) -> None:
    def fail(rows: object) -> list[tuple[float, ...]]:
        raise Internal("no")

    wanted.subject.function = fail


@pytest.mark.parametrize("make", [busy, failing])
def test_measurement_that_may_mislead_is_used_and_not_kept(
    wanted: Wanted,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[pytest.MonkeyPatch, Wanted], None],
) -> None:
    """A busy host or a failing example says little about the next version."""
    make(monkeypatch, wanted)
    assert wanted.profile() is not None
    assert not wanted.kept.exists()


def test_dependent_rows_are_known_for_the_next_version_too(wanted: Wanted) -> None:
    """That a model mixes its batch is as much worth knowing as that it does not."""
    wanted.subject.function = centred
    profile = present(wanted.profile())
    assert profile.signatures[DEFAULT_SIGNATURE].rows_independent is False
    assert wanted.profiler.known("d") is profile


@pytest.fixture(params=["inline", "process"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter]:
    with contextlib.ExitStack() as stack:
        made: Interpreter
        if request.param == "inline":
            made = InlineInterpreter("inline-profiler")
        else:
            made = stack.enter_context(process_host()).pool()
        yield made
        made.close()


def test_loader_measures_what_it_loaded(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    """Loading a version directory yields a profile with all that a host can tell."""
    path = save(DigitClassifier(), torch.rand(2, 64) * 16, tmp_path)
    profiler = Profiler(Profiles(), ProbeOptions(3.0, 4))
    context = LoadContext(lambda _: interpreter, profiler=profiler)
    loader = default_registry().loader(path, context)
    assert isinstance(loader, VersionLoader)
    loader.load(ID)
    profile = loader.servable.profile  # type: ignore[attr-defined]
    assert profile is not None
    assert profile.signatures[DEFAULT_SIGNATURE].rows_independent
    assert profile.two_thread_scaling is not None
    assert profile.load_s is not None
    assert present(profile.import_s) <= profile.load_s
    assert profile.signatures[DEFAULT_SIGNATURE].peak_bytes is not None
    if isinstance(interpreter, InlineInterpreter):  # where others allocate, too
        assert profile.resident_bytes is None
    else:
        size_bytes = os.path.getsize(os.path.join(path, "model.pt"))
        assert size_bytes <= (profile.resident_bytes or 0) < size_bytes + (64 << 20)
        assert profile.load_peak_bytes is not None
    loader.unload()


def test_import_is_measured_in_processor_time(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    """Waiting, for a processor or anything else, holds nobody up and does not count."""
    path = tmp_path / "1"
    path.mkdir()
    (path / "servable.py").write_text(
        "import time\n"
        "time.sleep(0.3)\n"
        "class Servable:\n"
        "    signatures = {'serving_default': {'method': 'predict', "
        "'inputs': {'x': {'dtype': 'float32', 'shape': [-1]}}, "
        "'outputs': {'y': {'dtype': 'float32', 'shape': [-1]}}}}\n"
        "    def predict(self, x):\n"
        "        return x\n"
    )
    context = LoadContext(lambda _: interpreter, profiler=Profiler(Profiles()))
    loader = default_registry().loader(str(path), context)
    assert isinstance(loader, VersionLoader)
    loader.load(ID)
    profile = loader.servable.profile  # type: ignore[attr-defined]
    assert profile is not None
    assert present(profile.import_s) < 0.3
    assert present(profile.load_s) >= 0.3
    loader.unload()


def test_what_calls_were_seen_to_take_is_reserved_for_the_first_version_too(
    tmp_path: Path,
) -> None:
    """Files say nothing of activations; the manager asks again after the load."""
    path = save(Greedy().eval(), torch.rand(2, 64), tmp_path)
    with process_host() as host:
        interpreter = host.pool()
        profiler = Profiler(Profiles(), ProbeOptions(3.0, 16))
        context = LoadContext(lambda _: interpreter, profiler=profiler)
        loader = default_registry().loader(path, context)
        peak = Resource(MAIN, PEAK_RAM_BYTES, 0)
        before = loader.estimate_resources()[peak]
        loader.load(ID)
        assert isinstance(loader, VersionLoader)
        profile = loader.servable.profile  # type: ignore[attr-defined]
        assert profile is not None
        measured = present(profile.signatures[DEFAULT_SIGNATURE].peak_bytes)
        assert measured > 40 << 20
        assert loader.estimate_resources()[peak] == max(
            before, measured, profile.load_peak_bytes or 0
        )
        loader.unload()
        interpreter.close()


PROFILE = ModelProfile(code_digest="abc", load_s=0.25)


def test_profile_is_remembered_in_memory() -> None:
    """Without a state directory profiles last as long as the server."""
    profiles = Profiles()
    assert profiles.get("abc") is None
    profiles.put(PROFILE)
    assert profiles.get("abc") is PROFILE


def test_profile_survives_a_restart_in_the_state_directory(tmp_path: Path) -> None:
    """What was measured once is known to the next server on this host."""
    Profiles(str(tmp_path)).put(PROFILE)
    assert Profiles(str(tmp_path)).get("abc") == PROFILE
    assert [p.name for p in (tmp_path / "profiles").iterdir()] == ["abc.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"signatures": 3}', "{}"])
def test_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    """A profile can be measured again; a load must not fail for it."""
    Profiles(str(tmp_path)).put(PROFILE)
    (tmp_path / "profiles" / "abc.json").write_text(text)
    assert Profiles(str(tmp_path)).get("abc") is None


def test_state_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A full or read-only disk costs the memory of a restart, nothing else."""
    (tmp_path / "profiles").write_text("a file where the folder should be")
    profiles = Profiles(str(tmp_path))
    profiles.put(PROFILE)
    assert profiles.get("abc") is PROFILE


def test_profile_without_digest_is_refused() -> None:
    """Nobody could ever find it again."""
    with pytest.raises(ValueError, match="code digest"):
        Profiles().put(ModelProfile())


def test_what_a_busy_host_measured_lasts_as_long_as_the_server(tmp_path: Path) -> None:
    """It is good enough for the next versions, and the next server measures anew."""
    profiles = Profiles(str(tmp_path))
    profiles.put(PROFILE, is_quiet=False)
    assert profiles.get("abc") is PROFILE
    assert Profiles(str(tmp_path)).get("abc") is None


def test_one_version_of_each_code_has_its_turn_and_no_more_than_a_few() -> None:
    """However many threads load versions, the first two of each code come alone."""
    profiles = Profiles(num_turns=2)
    lock = threading.Lock()
    running: list[str] = []
    begun: list[str] = []
    most: list[int] = []

    def load(code: str) -> None:
        with profiles.turn(code) as known:
            if known is not None:
                return
            with lock:
                assert code not in running
                running.append(code)
                begun.append(code)
                most.append(len(running))
                is_second = begun.count(code) == 2
            with lock:
                running.remove(code)
            if is_second:
                profiles.put(ModelProfile(code_digest=code))

    codes = "abcd" * 4
    run_together(*(lambda code=code: load(code) for code in codes))
    assert max(most) <= 2
    assert sorted(begun) == sorted("abcd" * 2)


def test_others_do_not_wait_for_code_whose_first_versions_fail() -> None:
    """A turn that fails ends, and after two of them nobody takes turns any more."""
    profiles = Profiles(num_turns=1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), profiles.turn("a"):
            raise OSError("gone")
    with profiles.turn("b"), profiles.turn("a") as known:  # though "b" has the turn
        assert known is None
