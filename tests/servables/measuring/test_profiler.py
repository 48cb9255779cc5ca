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
from tests.runtime.process_host import process_host
from tests.servables.fakes import ID
from tests.servables.measuring.fake_subject import (
    FakeSubject,
    Remembering,
    centred,
    doubled,
)
from tfs.core.errors import Internal
from tfs.core.resources import MAIN, PEAK_RAM_BYTES, Resource
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version.model_profile import ModelProfile
from tfs.export import save
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.servables.measuring import probe as probe_module
from tfs.servables.measuring import profiles as profiles_module
from tfs.servables.measuring.probe import LoadMeasures, ProbeOptions
from tfs.servables.measuring.profiler import Profiler, ProfileRequest
from tfs.servables.measuring.profiles import Profiles
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.built_in import default_registry
from tfs.servables.version_loader import VersionLoader


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether others use the processors must not decide these tests."""
    monkeypatch.setattr(probe_module, "foreign_share", lambda *_: 0.0)


class Wanted:
    """A profiler over a fake model, and what it told."""

    def __init__(self, path: Path, budget_s: float = 0.5) -> None:
        self.subject = FakeSubject(doubled)
        self.crowded = False
        self.told: list[ModelProfile] = []
        self.path = path
        self.kept = path / "state" / "profiles"
        self.cache = Profiles(str(path / "state"), self.subject.clock)
        self.profiler = Profiler(
            self.cache,
            ProbeOptions(budget_s, 8),
            is_crowded=lambda: self.crowded,
            clock=self.subject.clock,
        )

    def request(self, version: int = 1, digest: str = "d") -> ProfileRequest:
        return ProfileRequest(
            ServableId("m", version),
            str(self.path),
            digest,
            self.subject,
            LoadMeasures(load_s=0.1),
            self.told.append,
        )


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    return Wanted(tmp_path)


def test_second_version_of_the_same_code_is_warmed_up_and_not_measured(
    wanted: Wanted,
) -> None:
    """What was measured once holds for other weights; kernels are chosen anew."""
    first = wanted.profiler.profile(wanted.request(1))
    assert first is not None
    assert first.signatures[DEFAULT_SIGNATURE].rows_independent
    wanted.subject.calls.clear()
    assert wanted.profiler.profile(wanted.request(2)) is first
    looked_at, warmed = wanted.subject.calls[:2], wanted.subject.calls[2:]
    assert looked_at == [(DEFAULT_SIGNATURE, 2), (DEFAULT_SIGNATURE, 1)]
    assert warmed == [(DEFAULT_SIGNATURE, 1), (DEFAULT_SIGNATURE, 8)]


def test_code_that_remembers_its_calls_is_not_called_again(wanted: Wanted) -> None:
    """Code that remembers its calls is not called, or clients would get the traces."""
    wanted.subject.function = Remembering()
    first = wanted.profiler.profile(wanted.request(1))
    assert first is not None
    assert not first.is_repeatable
    wanted.subject.calls.clear()
    assert wanted.profiler.profile(wanted.request(2)) is first
    assert wanted.subject.calls == []


def test_other_weights_may_connect_rows(wanted: Wanted) -> None:
    """A coefficient that was zero hid what the code does; known code is no proof."""
    assert wanted.profiler.profile(wanted.request(1)) is not None
    wanted.subject.function = centred
    second = wanted.profiler.profile(wanted.request(2))
    assert second is not None
    found = second.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert "when it was alone" in found.why_dependent
    wanted.subject.function = doubled
    third = wanted.profiler.profile(wanted.request(3))
    assert third is not None
    assert third.signatures[DEFAULT_SIGNATURE].rows_independent is True


def test_what_one_version_could_not_show_another_may(wanted: Wanted) -> None:
    """Weights of zero give every row the same answer, and the next version's do not."""
    wanted.subject.function = lambda rows: [(0.0, 0.0)] * len(rows)
    first = wanted.profiler.profile(wanted.request(1))
    assert first is not None
    assert first.signatures[DEFAULT_SIGNATURE].rows_independent is None
    wanted.subject.function = doubled
    second = wanted.profiler.profile(wanted.request(2))
    assert second is not None
    assert second.signatures[DEFAULT_SIGNATURE].rows_independent is True


def test_version_with_warm_up_requests_or_in_a_crowd_is_not_warmed_up(
    wanted: Wanted,
) -> None:
    """Its author's requests say better what to expect; a crowd has no time."""
    wanted.profiler.profile(wanted.request(1))
    wanted.subject.calls.clear()
    wanted.crowded = True
    assert wanted.profiler.profile(wanted.request(2)) is not None
    wanted.crowded = False
    requests = wanted.path / "assets.extra" / "tf_serving_warmup_requests"
    requests.parent.mkdir()
    requests.write_bytes(b"")
    assert wanted.profiler.profile(wanted.request(3)) is not None
    assert {rows for _, rows in wanted.subject.calls} == {1, 2}


def test_known_code_is_called_beside_what_serves_before_it_is_looked_at(
    wanted: Wanted,
) -> None:
    """A fresh process's first calls take long, and not from others' answers.

    Once is enough: what was rehearsed is not warmed up again.
    """
    wanted.profiler.profile(wanted.request(1))
    wanted.subject.calls.clear()
    wanted.subject.can_rehearse = True
    assert wanted.profiler.profile(wanted.request(2)) is not None
    rehearsed = f"{DEFAULT_SIGNATURE} rehearsed"
    assert wanted.subject.calls == [
        *((rehearsed, rows) for rows in (2, 1, 8)),
        (DEFAULT_SIGNATURE, 2),
        (DEFAULT_SIGNATURE, 1),
    ]


def test_what_is_warm_is_rehearsed_once(wanted: Wanted) -> None:
    """Where the same code ran before, more calls would only be in the way of answers."""
    wanted.profiler.profile(wanted.request(1))
    wanted.subject.calls.clear()
    wanted.subject.can_rehearse = True
    wanted.subject.rehearsal_s = wanted.subject.row_s * 2
    assert wanted.profiler.profile(wanted.request(2)) is not None
    assert wanted.subject.calls == [
        (f"{DEFAULT_SIGNATURE} rehearsed", 2),
        (DEFAULT_SIGNATURE, 2),
        (DEFAULT_SIGNATURE, 1),
    ]


def test_a_crowd_has_no_time_to_rehearse(wanted: Wanted) -> None:
    """A thousand versions are there sooner without."""
    wanted.profiler.profile(wanted.request(1))
    wanted.subject.calls.clear()
    wanted.subject.can_rehearse = wanted.crowded = True
    assert wanted.profiler.profile(wanted.request(2)) is not None
    assert wanted.subject.calls == [(DEFAULT_SIGNATURE, 2), (DEFAULT_SIGNATURE, 1)]


def test_crowded_load_postpones_and_idle_time_catches_up(wanted: Wanted) -> None:
    """A thousand versions are loaded first and measured afterwards, oldest first."""
    wanted.crowded = True
    for version in (1, 2):
        request = wanted.request(version, f"d{version}")
        assert wanted.profiler.profile(request) is None
    assert wanted.profiler.num_postponed == 2
    assert wanted.profiler.measure_postponed()
    assert [profile.code_digest for profile in wanted.told] == ["d1"]
    assert wanted.profiler.measure_postponed()
    assert not wanted.profiler.measure_postponed()
    assert wanted.profiler.known("d2") is wanted.told[1]


def test_unloaded_version_is_not_measured_any_more(wanted: Wanted) -> None:
    """Idle time must not call a model that is gone."""
    wanted.crowded = True
    wanted.profiler.profile(wanted.request())
    wanted.profiler.forget(ServableId("m", 1))
    assert not wanted.profiler.measure_postponed()
    assert wanted.subject.calls == []


def test_unloading_waits_for_the_measurement_that_runs(wanted: Wanted) -> None:
    """A model is not freed under its probe."""
    entered, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        entered.set()
        assert leave.wait(10)
        return doubled(rows)

    wanted.subject.function = slow
    wanted.crowded = True
    wanted.profiler.profile(wanted.request())

    def measure() -> None:
        wanted.profiler.measure_postponed()
        order.append("measured")

    def forget() -> None:
        wanted.profiler.forget(ServableId("m", 1))
        order.append("forgotten" if wanted.told else "too early")

    threads = [threading.Thread(target=measure), threading.Thread(target=forget)]
    threads[0].start()
    assert entered.wait(10)
    assert not wanted.profiler.measure_postponed()
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert sorted(order) == ["forgotten", "measured"]


def test_budget_of_zero_wants_no_profile(tmp_path: Path) -> None:
    """Turned off means that nothing is called and nothing is known."""
    wanted = Wanted(tmp_path, budget_s=0)
    assert wanted.profiler.profile(wanted.request()) is None
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
    assert wanted.profiler.profile(wanted.request()) is not None
    assert not wanted.kept.exists()


def test_spoiled_profile_stands_in_for_the_next_versions_of_the_code(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server that gets a version a second must not measure one a second."""
    busy(monkeypatch, wanted)
    first = wanted.profiler.profile(wanted.request(1))
    for version in range(2, 5):
        wanted.subject.calls.clear()
        assert wanted.profiler.known("d") is first
        assert wanted.profiler.profile(wanted.request(version)) is first
        assert [rows for _, rows in wanted.subject.calls] == [2, 1, 1, 8]


def test_spoiled_profile_is_replaced_when_the_pause_is_over_and_the_host_quiet(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stood in gives way to a proper measurement, which is kept."""
    busy(monkeypatch, wanted)
    first = wanted.profiler.profile(wanted.request(1))
    monkeypatch.setattr(probe_module, "foreign_share", lambda *_: 0.0)
    monkeypatch.setattr(profiles_module, "foreign_share", lambda *_: 0.0)
    wanted.subject.clock.advance(profiles_module.FIRST_PAUSE_S)
    assert wanted.profiler.known("d") is first
    second = wanted.profiler.profile(wanted.request(2))
    assert second is not first
    assert wanted.profiler.known("d") is second
    assert wanted.kept.exists()


def test_dependent_rows_are_known_for_the_next_version_too(wanted: Wanted) -> None:
    """That a model mixes its batch is as much worth knowing as that it does not."""
    wanted.subject.function = centred
    profile = wanted.profiler.profile(wanted.request())
    assert profile is not None
    assert profile.signatures[DEFAULT_SIGNATURE].rows_independent is False
    assert wanted.profiler.known("d") is profile


@pytest.fixture(params=["inline", "process"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter]:
    with contextlib.ExitStack() as stack:
        made: Interpreter
        if request.param == "inline":
            made = InlineInterpreter("inline-profiler")
        else:
            made = stack.enter_context(process_host()).interpreter()
        made.start()
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
    assert profile.import_s is not None
    assert profile.import_s <= profile.load_s
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
    assert profile.import_s is not None
    assert profile.import_s < 0.3
    assert profile.load_s is not None
    assert profile.load_s >= 0.3
    loader.unload()


def test_what_calls_were_seen_to_take_is_reserved_for_the_first_version_too(
    tmp_path: Path,
) -> None:
    """Files say nothing of activations; the manager asks again after the load."""
    path = save(Greedy().eval(), torch.rand(2, 64), tmp_path)
    with process_host() as host:
        interpreter = host.interpreter()
        interpreter.start()
        profiler = Profiler(Profiles(), ProbeOptions(3.0, 16))
        context = LoadContext(lambda _: interpreter, profiler=profiler)
        loader = default_registry().loader(path, context)
        peak = Resource(MAIN, PEAK_RAM_BYTES, 0)
        before = loader.estimate_resources()[peak]
        loader.load(ID)
        assert isinstance(loader, VersionLoader)
        profile = loader.servable.profile  # type: ignore[attr-defined]
        assert profile is not None
        measured = profile.signatures[DEFAULT_SIGNATURE].peak_bytes
        assert measured is not None
        assert measured > 40 << 20
        assert loader.estimate_resources()[peak] == max(
            before, measured, profile.load_peak_bytes or 0
        )
        loader.unload()
        interpreter.close()
