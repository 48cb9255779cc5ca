from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.conformance.servable import run_task
from tests.models.digits import DigitClassifier
from tests.servables.fakes import ID
from tests.servables.measuring.fake_subject import (
    SIGNATURE,
    FakeSubject,
    Remembering,
    Rows,
    centred,
    doubled,
)
from tfs.core.dtype import FLOAT32
from tfs.core.errors import (
    DeadlineExceeded,
    Internal,
    InterpreterDied,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.servable import InferenceTask, OneByOne, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import (
    DEFAULT_SIGNATURE,
    ExampleSlot,
)
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile
from tfs.export import save
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.measuring.probe import ProbeOptions, foreign_cpu_s, probe
from tfs.servables.measuring.probe_subject import (
    ProbeSubject,
    failing_examples,
    warm_up,
)
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry


def profiled(
    subject: FakeSubject, path: Path, budget_s: float = 0.5, largest: int = 8
) -> ModelProfile:
    options = ProbeOptions(budget_s, largest)
    return probe(subject, str(path), options, clock=subject.clock).profile


def test_everything_is_measured_within_a_generous_budget(tmp_path: Path) -> None:
    """Rows are independent; every size, the full batch and scaling have their figures."""
    subject = FakeSubject(doubled, scaling=1.8)
    profile = profiled(subject, tmp_path)
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is True
    assert profile.two_thread_scaling == 1.8
    assert found.call_s_by_rows == pytest.approx(
        {rows: rows * 0.001 for rows in (1, 2, 4, 8)}
    )
    assert found.full_batch_s == pytest.approx(0.008)


@pytest.mark.parametrize("limit", [4, 5, 11, 31])
def test_the_largest_batch_that_works_is_found(tmp_path: Path, limit: int) -> None:
    """A model that fails beyond a number of rows serves batches of as many."""

    def limited(rows: Rows) -> Rows:
        if len(rows) > limit:
            raise Internal("not enough memory")
        return doubled(rows)

    subject = FakeSubject(limited, scaling=1.8)
    options = ProbeOptions(0.5, 32)
    result = probe(subject, str(tmp_path), options, clock=subject.clock)
    found = result.profile.signatures[DEFAULT_SIGNATURE]
    assert (found.max_rows, found.rows_independent) == (limit, True)
    assert max(found.call_s_by_rows) == limit
    assert result.failures == {}


def test_a_batch_that_ended_the_interpreter_is_tried_at_no_other_size(
    tmp_path: Path,
) -> None:
    """Each try may cost a process: the limit is what small batches showed."""

    def deadly(rows: Rows) -> Rows:
        if len(rows) > 4:
            raise InterpreterDied("it was killed for its memory")
        return doubled(rows)

    subject = FakeSubject(deadly)
    found = profiled(subject, tmp_path, largest=32).signatures[DEFAULT_SIGNATURE]
    assert found.max_rows == 4
    assert found.death.endswith("memory when serving_default was called (rows: 32)")
    assert sum(rows > 4 for _, rows in subject.calls) == 1


def test_a_fleet_has_heard_enough_when_a_call_ended_the_interpreter(
    tmp_path: Path,
) -> None:
    """No other call is made: it may hang for as long."""

    def deadly(rows: Rows) -> Rows:
        if len(rows) > 4:
            raise InterpreterDied("it hung")
        return doubled(rows)

    subject = FakeSubject(deadly)
    options = ProbeOptions(0.5, 32, needs_peaks=True)
    probe(subject, str(tmp_path), options, clock=subject.clock)
    assert subject.calls[-1][1] == 32


def test_a_fleet_expects_a_little_more_than_the_largest_batch_took(
    tmp_path: Path,
) -> None:
    """Further calls take more now and then, also of what is given back between them."""
    size_bytes = 128 << 20

    def large(rows: Rows) -> Rows:
        if len(rows) == 32:
            assert b"\1" * size_bytes
        return doubled(rows)

    subject = FakeSubject(large)
    options = ProbeOptions(0.5, 32, needs_peaks=True)
    profile = probe(subject, str(tmp_path), options, clock=subject.clock).profile
    peak_bytes = profile.signatures[DEFAULT_SIGNATURE].peak_bytes
    assert peak_bytes is not None
    assert 1.04 * size_bytes < peak_bytes < 1.1 * size_bytes


def test_a_process_that_is_not_back_yet_makes_no_death_one_of_every_call(
    tmp_path: Path,
) -> None:
    """What small batches answered counts, though nothing could be timed after the death."""
    died: list[int] = []

    def deadly(rows: Rows) -> Rows:
        if died:
            raise Unavailable("its interpreter is restarting")
        if len(rows) > 4:
            died.append(len(rows))
            raise InterpreterDied("it died")
        return doubled(rows)

    profile = profiled(FakeSubject(deadly), tmp_path, largest=32)
    assert not profile.signatures[DEFAULT_SIGNATURE].call_s_by_rows
    assert profile.how_it_died().startswith("it died when serving_default was called")
    assert not profile.how_it_died(at_every_call=True)


def test_order_is_independence_largest_scaling_other_sizes(tmp_path: Path) -> None:
    """What placement and batching need most is measured first."""
    subject = FakeSubject(doubled, scaling=1.0)
    profiled(subject, tmp_path)
    order = [key for i, key in enumerate(subject.calls) if key not in subject.calls[:i]]
    name = DEFAULT_SIGNATURE
    assert order == [
        (name, 2), (name, 3), (name, 1), (name, 4), (name, 8), (f"{name} twice", 8),
    ]  # fmt: skip


def test_row_independence_is_finished_whatever_the_budget(tmp_path: Path) -> None:
    """A slow model is still shown to be safe to batch; nothing else is measured."""
    subject = FakeSubject(doubled, row_s=1.0)
    profile = profiled(subject, tmp_path, budget_s=0.01)
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is True
    assert [rows for _, rows in subject.calls] == [2, 2, 3, 1, 1, 4, 2]
    assert found.call_s_by_rows == {}
    assert profile.two_thread_scaling is None


def test_largest_batch_is_looked_at_on_a_busy_host_too(tmp_path: Path) -> None:
    """Six calls can take longer than the budget where others compute; what such a model
    does from some size on shows all the same.
    """
    subject = FakeSubject(other_from_five_on)
    calls = 0

    def interrupted(rows: Rows) -> Rows:
        nonlocal calls
        calls += 1
        if calls < 6:
            subject.clock.advance(0.1)
        return other_from_five_on(rows)

    subject.function = interrupted
    profile = profiled(subject, tmp_path, largest=32)
    assert [rows for _, rows in subject.calls] == [2, 2, 3, 1, 1, 4, 32, 2]
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert "in a batch of 32 rows" in found.why_dependent


def test_budget_of_zero_calls_nothing(tmp_path: Path) -> None:
    """Probing can be turned off; only what the loader saw remains."""
    subject = FakeSubject(doubled)
    loaded = ModelProfile("d", import_s=0.01, load_s=0.2)
    options = ProbeOptions(budget_s=0)
    result = probe(subject, str(tmp_path), options, loaded, subject.clock)
    assert subject.calls == []
    assert result.profile == loaded


def test_rows_that_influence_each_other_are_found_and_described(
    tmp_path: Path,
) -> None:
    """A model that mixes its batch must not be batched across requests."""
    profile = profiled(FakeSubject(centred), tmp_path)
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert "output 'y' of row 0 changed by up to" in found.why_dependent
    assert "a row was added" in found.why_dependent


def scaled_by_largest(rows: Rows) -> Rows:
    """The same for a batch however often a row is in it, and in any order."""
    largest = max(abs(x) for row in rows for x in row)
    return [tuple(x / largest for x in row) for row in rows]


def added_up(rows: Rows) -> Rows:
    sums = [0.0, 0.0]
    return [
        tuple(sums := [a + b for a, b in zip(sums, row, strict=True)]) for row in rows
    ]


def counting(rows: Rows) -> Rows:
    return [(row[0], float(len(rows))) for row in rows]


def sorted_rows(rows: Rows) -> Rows:
    return sorted(rows)


def other_from_five_on(rows: Rows) -> Rows:
    return [(row[0], row[1] + (len(rows) > 4)) for row in rows]


class Noisy:
    """Adds a little to every call, as dropout does."""

    def __init__(self) -> None:
        self.random = random.Random(1)

    def __call__(self, rows: Rows) -> Rows:
        return [tuple(x + self.random.random() for x in row) for row in rows]


@pytest.mark.parametrize(
    "function",
    [
        scaled_by_largest,
        added_up,
        counting,
        sorted_rows,
        other_from_five_on,
        Remembering(),
        Noisy(),
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_rows_that_lean_on_their_batch_are_found(
    tmp_path: Path, function: Callable[[Rows], Rows]
) -> None:
    """Rows that depend on others, on earlier calls or on chance are not batched."""
    profile = profiled(FakeSubject(function), tmp_path)
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert found.why_dependent


class Drifting:
    """Adds a running sum, too small to show from one call to the next."""

    def __init__(self) -> None:
        self.sum = 0.0

    def __call__(self, rows: Rows) -> Rows:
        self.sum += 2e-5
        return [tuple(x + self.sum for x in row) for row in rows]


@pytest.mark.parametrize("is_batched", [True, False])
def test_model_that_keeps_something_of_its_calls_is_found(
    tmp_path: Path, is_batched: bool
) -> None:
    """A model that keeps anything of its calls is found, even without a batch."""
    signatures = {DEFAULT_SIGNATURE: replace(SIGNATURE, batched=is_batched)}
    lasting = profiled(FakeSubject(doubled, signatures=signatures), tmp_path)
    assert lasting.is_repeatable
    subject = FakeSubject(Drifting(), row_s=1e-5, signatures=signatures)
    drifting = profiled(subject, tmp_path, budget_s=5.0)
    assert not drifting.is_repeatable
    assert not drifting.signatures[DEFAULT_SIGNATURE].rows_independent


def drawing(rows: Rows) -> Rows:
    """Adds noise of the process's own random numbers, as dropout does."""
    return [tuple(x + random.random() for x in row) for row in rows]


@pytest.mark.parametrize("can_seed", [True, False])
def test_model_that_draws_lots_keeps_nothing(tmp_path: Path, *, can_seed: bool) -> None:
    """Given the numbers that it drew at first it answers as at first; rows differ."""
    subject = FakeSubject(drawing)
    subject.can_seed = can_seed
    profile = profiled(subject, tmp_path)
    assert profile.is_repeatable == can_seed
    assert profile.signatures[DEFAULT_SIGNATURE].rows_independent is False
    assert subject.seeds == ([0, 0, None] if can_seed else [0])


def test_model_that_draws_lots_and_remembers_is_found(tmp_path: Path) -> None:
    """The numbers are the same then, and its answers are not."""
    drifting = Drifting()
    subject = FakeSubject(lambda rows: drifting(drawing(rows)), row_s=1e-5)
    assert not profiled(subject, tmp_path, budget_s=5.0).is_repeatable


def test_batch_of_another_shape_is_no_batch(tmp_path: Path) -> None:
    """A model that drops a batch of one cannot be asked for other batches either."""

    def squeezed(rows: Rows) -> Rows:
        return rows if len(rows) > 1 else []

    class Squeezing(FakeSubject):
        def call(
            self, signature_name: str, inputs: Tensors, timeout_s: float
        ) -> Tensors:
            outputs = super().call(signature_name, inputs, timeout_s)
            view = outputs["y"]
            return {"y": TensorView(FLOAT32, (len(view.data) // 8, 2), view.data)}

    found = profiled(Squeezing(squeezed), tmp_path).signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is False
    assert "had shape [0, 2] for 1 rows" in found.why_dependent


def test_rounding_of_another_batch_size_is_no_dependence(tmp_path: Path) -> None:
    """Kernels may sum in another order when there are more rows."""

    def rounded(rows: Rows) -> Rows:
        error = 1e-6 * len(rows)
        return [tuple(x * (1 + error) for x in row) for row in rows]

    profile = profiled(FakeSubject(rounded), tmp_path)
    assert profile.signatures[DEFAULT_SIGNATURE].rows_independent is True


def test_same_answer_for_every_row_shows_nothing(tmp_path: Path) -> None:
    """A constant cannot tell whether rows influence each other."""
    profile = profiled(FakeSubject(lambda rows: [(1.0, 1.0)] * len(rows)), tmp_path)
    found = profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is None
    assert "same outputs" in found.why_dependent


def test_model_that_fails_on_made_up_inputs_has_a_profile_all_the_same(
    tmp_path: Path,
) -> None:
    """A probe never fails a load: it says why it knows nothing."""

    def failing(rows: Rows) -> Rows:
        raise Internal("index out of range")

    subject = FakeSubject(failing)
    result = probe(subject, str(tmp_path), ProbeOptions(), clock=subject.clock)
    found = result.profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is None
    assert found.call_s_by_rows == {}
    assert result.failures == {DEFAULT_SIGNATURE: "index out of range"}


def test_slowest_signature_decides_the_scaling(tmp_path: Path) -> None:
    """One version has one placement."""

    class TwoSignatures(FakeSubject):
        def two_thread_scaling(
            self, signature_name: str, inputs: Tensors, duration_s: float
        ) -> float | None:
            super().two_thread_scaling(signature_name, inputs, duration_s)
            return 1.9 if signature_name == DEFAULT_SIGNATURE else 0.6

    subject = TwoSignatures(
        doubled, signatures={DEFAULT_SIGNATURE: SIGNATURE, "other": SIGNATURE}
    )
    assert profiled(subject, tmp_path).two_thread_scaling == 0.6


def test_warm_up_calls_every_signature_small_and_full(tmp_path: Path) -> None:
    """The first real request finds kernels chosen and memory allocated."""
    subject = FakeSubject(
        doubled, signatures={DEFAULT_SIGNATURE: SIGNATURE, "other": SIGNATURE}
    )
    deadline_s = subject.clock.now() + 1

    def call(deadline_s: float, **more: Any) -> int:
        """Returns how many calls were made."""
        subject.calls.clear()
        warm_up(
            subject.call,
            subject.signatures,
            str(tmp_path),
            lambda _: (1, 8),
            deadline_s,
            subject.clock,
            **more,
        )
        return len(subject.calls)

    assert call(deadline_s) == 4
    assert subject.calls == [
        (DEFAULT_SIGNATURE, 1), (DEFAULT_SIGNATURE, 8), ("other", 1), ("other", 8),
    ]  # fmt: skip
    assert call(0.0) == 0
    times = {1: 0.001, 8: 10.0}
    num_calls = call(deadline_s, num_rounds=2, predict_s=lambda _, rows: times[rows])
    assert num_calls == 4
    assert {rows for _, rows in subject.calls} == {1}, "8 rows would not end in time"


def _failing(subject: FakeSubject, version_dir: Path) -> dict[str, str]:
    """Returns the errors of the signatures that fail on their examples."""
    found = failing_examples(subject, str(version_dir), 60.0)
    return {name: error.message for name, error in found.items()}


def test_only_an_authors_example_is_one_that_a_version_must_not_fail_on(
    tmp_path: Path,
) -> None:
    """What fails on values that were made up may never be asked for."""

    def failing(rows: Rows) -> Rows:
        raise Internal("index out of range")

    values = struct.pack("<4f", 1, 2, 3, 4)
    (tmp_path / "examples.bin").write_bytes(values)
    example = {"x": ExampleSlot((2, 2))}
    signatures = {
        "authors": replace(SIGNATURE, examples=example),
        "made_up": SIGNATURE,
    }
    subject = FakeSubject(failing, signatures=signatures)
    assert _failing(subject, tmp_path) == {"authors": "index out of range"}


@pytest.mark.parametrize("error", [ResourceExhausted, DeadlineExceeded])
def test_a_version_without_room_or_time_fails_on_its_example(
    tmp_path: Path, error: type[ServingError]
) -> None:
    """A call that hangs, or needs more memory than there is, answers nobody either."""

    def failing(rows: Rows) -> Rows:
        raise error("not here")

    (tmp_path / "examples.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    signature = replace(SIGNATURE, examples={"x": ExampleSlot((2, 2))})
    subject = FakeSubject(failing, signatures={DEFAULT_SIGNATURE: signature})
    assert _failing(subject, tmp_path) == {DEFAULT_SIGNATURE: "not here"}


def test_a_model_that_takes_no_single_row_does_not_fail_on_its_example(
    tmp_path: Path,
) -> None:
    """It answers its author's example, which has two."""

    def of_several(rows: Rows) -> Rows:
        if len(rows) != 2:
            raise Internal("expected more than 1 value per channel")
        return rows

    (tmp_path / "examples.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    signature = replace(SIGNATURE, examples={"x": ExampleSlot((2, 2))})
    subject = FakeSubject(of_several, signatures={DEFAULT_SIGNATURE: signature})
    assert _failing(subject, tmp_path) == {}


@pytest.mark.parametrize(
    "options",
    [{"budget_s": -1}, {"largest_batch": 0}, {"call_timeout_s": 0}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    """A mistake in a flag shows at start, not at the first load."""
    with pytest.raises(InvalidArgument):
        ProbeOptions(**options)  # type: ignore[arg-type]


def test_what_calls_change_of_the_process_is_in_the_profile(tmp_path: Path) -> None:
    """A model that does it in its first call needs a process of its own, too."""
    subject = FakeSubject(doubled)
    loaded = ModelProfile(process_changes="the environment")
    options = ProbeOptions(budget_s=0.2, largest_batch=4)
    result = probe(subject, str(tmp_path), options, loaded, subject.clock)
    assert result.profile.process_changes == "the environment"
    subject.process_changes = "the environment, logging"
    result = probe(subject, str(tmp_path), options, loaded, subject.clock)
    assert result.profile.process_changes == "the environment, logging"


def test_real_model_is_measured_with_its_authors_example(tmp_path: Path) -> None:
    """An exported version gets its profile through a real interpreter."""
    interpreter = InlineInterpreter("inline-probe")
    path = save(DigitClassifier(), torch.rand(2, 64) * 16, tmp_path)
    loader = default_registry().loader(path, LoadContext(lambda _: interpreter))
    loader.load(ID)
    subject = ProbeSubject(loader.servable)
    options = ProbeOptions(budget_s=0.2, largest_batch=4)
    result = probe(subject, path, options)
    found = result.profile.signatures[DEFAULT_SIGNATURE]
    assert found.rows_independent is True
    assert 4 in found.call_s_by_rows
    assert ModelProfile.from_json(result.profile.to_json()) == result.profile
    loader.unload()
    interpreter.close()


class Silent(OneByOne):
    """A servable that never answers."""

    id = ServableId("silent", 1)
    signatures = {DEFAULT_SIGNATURE: SIGNATURE}  # noqa: RUF012

    def __init__(self) -> None:
        self.tasks: list[InferenceTask] = []

    def submit(self, task: InferenceTask) -> None:
        self.tasks.append(task)


def test_call_that_hangs_ends_the_probe_and_is_marked(tmp_path: Path) -> None:
    """A model that never answers costs the probe its time limit, once."""
    silent = Silent()
    options = ProbeOptions(call_timeout_s=0.01)
    result = probe(ProbeSubject(silent), str(tmp_path), options)
    assert len(silent.tasks) == 1
    assert isinstance(silent.tasks[0].cancel.error, DeadlineExceeded)
    assert "over 0.01 s" in result.failures[DEFAULT_SIGNATURE]


def test_error_of_the_model_is_raised_by_the_subject(tmp_path: Path) -> None:
    """A probe sees what a client would."""
    (tmp_path / "table.csv").write_text("k,v\na,1\n")
    loader = default_registry().loader(
        str(tmp_path), LoadContext(lambda _: InlineInterpreter())
    )
    loader.load(ID)
    subject = ProbeSubject(loader.servable)
    with pytest.raises(ServingError):
        subject.call(DEFAULT_SIGNATURE, {}, 1.0)
    keys = {"k": TensorView.checked(loader.servable.signatures[DEFAULT_SIGNATURE]
                                    .inputs["k"].dtype, (1,), (b"a",))}  # fmt: skip
    assert not isinstance(
        run_task(loader.servable, DEFAULT_SIGNATURE, keys), ServingError
    )


@pytest.mark.parametrize(("num_slow", "batch_s"), [(2, 8e-5), (3, 0.01 + 8e-5)])
def test_calls_that_were_held_up_decide_only_if_most_were(
    tmp_path: Path, num_slow: int, batch_s: float
) -> None:
    """Where a version runs depends neither on what else starts nor on a few quick calls."""
    subject = FakeSubject(doubled, row_s=1e-5)
    num = 0

    def sometimes_held_up(rows: Rows) -> Rows:
        nonlocal num
        num += 1
        if num % 5 < num_slow:
            subject.clock.advance(0.01)
        return doubled(rows)

    subject.function = sometimes_held_up
    found = profiled(subject, tmp_path).signatures[DEFAULT_SIGNATURE]
    assert found.full_batch_s == pytest.approx(batch_s)


def test_a_worker_that_ended_counts_as_others() -> None:
    """So a measurement in which one dies is noisy, and not taken for a quiet one."""
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert foreign_cpu_s([ended.pid]) is not None
