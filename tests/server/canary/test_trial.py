"""tfs.server.canary.trial: copies, comparison, guards."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.server.environment import Environment, config, model
from tests.server.puppet import SIGNATURE, floats
from tfs.core.dtype import FLOAT32
from tfs.core.errors import Cancelled, Internal, InvalidArgument, ServingError
from tfs.core.signature import Signature, TensorSpec
from tfs.proto.tfs.v1.admin_service_pb2 import GuardReport
from tfs.proto.tfs.v1.model_config_pb2 import Guard
from tfs.server.canary import trial
from tfs.server.canary.comparison import Figures, judge
from tfs.server.canary.trial import MAX_QUEUED, Trial

ALL = "model_version_policy { all {} }"


def on_trial(fields: str) -> Environment:
    """Returns a core with version 1 the primary and version 2 on trial."""
    env = Environment()
    for version in (1, 2):
        env.add_version("a", version)
    env.start(config(with_canary(fields)))
    return env


def half_split(min_samples: int) -> Environment:
    """Returns a core whose requests go to the canary and the primary by turns."""
    env = on_trial(
        "split_fraction: 0.5 "
        f"guard {{ min_samples: {min_samples} max_error_rate: 0.1 }}"
    )
    numbers = itertools.cycle([0.1, 0.9, 0.9])  # to the canary; the primary, no copy
    env.core.served._rng = lambda: next(numbers)
    env.core.served.refresh("a")
    return env


def with_canary(fields: str) -> str:
    """Returns a model whose version 2 is on trial against version 1."""
    return model(
        "a", "", f"{ALL} traffic {{ primary: 1 canary {{ version: 2 {fields} }} }}"
    )


def trial_of(env: Environment) -> Trial:
    """Returns the only trial."""
    found = env.core.served.trial("a")
    assert found is not None
    return found


def test_a_copy_gives_way_to_requests() -> None:
    """It has the lowest priority in the canary's queue and on its device."""
    env = on_trial("tee_fraction: 1")
    env.request("a")
    (asked,), (copied,) = env.puppet("a", 1).tasks, env.puppet("a", 2).tasks
    assert (asked.is_low, copied.is_low) == (False, True)


def test_only_the_sampled_share_is_copied() -> None:
    """Each request is copied by lot, so that the share is the configured one."""
    env = on_trial("tee_fraction: 0.5")
    numbers = iter([0.4, 0.6, 0.1, 0.9])
    env.core.served._rng = lambda: next(numbers)
    env.core.served.refresh("a")
    for _ in range(4):
        env.request("a")
    assert trial_of(env).num_teed == 2


def test_named_versions_are_not_copied() -> None:
    """Tee touches only requests that name neither version nor label."""
    env = on_trial("tee_fraction: 1")
    env.request("a", version=1)
    assert trial_of(env).num_teed == 0


def test_the_caller_has_its_answer_before_the_copy_runs() -> None:
    """A canary that hangs delays nobody."""
    env = on_trial("tee_fraction: 1")
    env.puppet("a", 2).is_holding = True
    for _ in range(3):
        env.request("a")
    assert len(env.outcomes) == 3
    assert len(env.puppet("a", 2).held) == 1  # one at a time
    env.puppet("a", 2).is_holding = False
    env.puppet("a", 2).release()
    env.settle()
    assert trial_of(env).total.shown.num_requests == 3


def test_copies_beyond_the_queue_are_dropped_and_counted() -> None:
    """The queue is small, and the primary never waits for it."""
    env = on_trial("tee_fraction: 1")
    env.puppet("a", 2).is_holding = True
    for _ in range(MAX_QUEUED + 4):
        env.request("a")
    found = trial_of(env)
    assert found.num_teed == MAX_QUEUED + 1  # those that wait, and the one that runs
    assert found.num_dropped == 3
    assert len(env.outcomes) == MAX_QUEUED + 4


def test_a_canary_that_fails_alone_is_at_fault() -> None:
    """Errors of both are the callers'; errors of one are its own."""
    env = on_trial("tee_fraction: 1")
    env.puppet("a", 1).error = env.puppet("a", 2).error = InvalidArgument("bad row")
    env.request("a")
    assert trial_of(env).total.canary_fault_rate == 0.0
    assert trial_of(env).total.shown.canary_error_rate == 1.0
    env.puppet("a", 1).error = None
    env.request("a")
    assert trial_of(env).total.canary_fault_rate == 0.5
    assert trial_of(env).total.shown.primary_error_rate == 0.5


def test_what_a_request_leaves_out_is_the_canarys_own_default() -> None:
    """A copy is what the caller sent: the primary's default is no row of it, and may be
    another than the canary's.
    """
    env = on_trial("tee_fraction: 1")
    for version in (1, 2):
        env.puppet("a", version).signatures = {
            "serving_default": replace(
                SIGNATURE,
                inputs={**SIGNATURE.inputs, "scale": TensorSpec(FLOAT32, (-1, 2))},
                defaults={"scale": floats((version, version))},
            )
        }
    rows = floats((1.0, 2.0), (3.0, 4.0))
    env.request("a", inputs={"x": rows})
    env.request("a", inputs={"x": rows, "scale": rows})
    found = trial_of(env).total.shown
    assert (found.num_requests, found.canary_error_rate) == (2, 0.0)
    left_out, sent = env.puppet("a", 2).tasks
    assert left_out.inputs["scale"] == floats((2.0, 2.0))
    assert sent.inputs["scale"] == rows


def test_a_canary_without_the_signature_fails() -> None:
    """It cannot answer what the primary does."""
    env = on_trial("tee_fraction: 1")
    env.puppet("a", 2).signatures = dict[str, Signature]()
    env.request("a")
    assert trial_of(env).total.canary_fault_rate == 1.0


def test_latencies_are_compared() -> None:
    """The canary's mean over the primary's."""
    env = on_trial("tee_fraction: 1")
    env.puppet("a", 1).is_holding = env.puppet("a", 2).is_holding = True
    env.request("a")
    env.clock.advance(0.1)
    env.puppet("a", 1).release()
    env.settle()
    env.clock.advance(0.3)
    env.puppet("a", 2).release()
    env.settle()
    found = trial_of(env).report(include_latencies=True).total
    assert found.latency_ratio == pytest.approx(3.0)
    assert found.primary_latency_s.total == pytest.approx(0.1)
    assert found.canary_latency_s.total == pytest.approx(0.3)
    assert not trial_of(env).report().total.HasField("canary_latency_s")


def test_a_guard_looks_less_often_the_more_samples_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A judgement takes longer than a small model; it is never more than 1/256 late."""
    env = on_trial("split_fraction: 1 guard { min_samples: 10 max_error_rate: 0.001 }")
    looks: list[int] = []

    def counting(guard: Guard, figures: Figures) -> tuple[GuardReport, ...]:
        looks.append(figures.num_samples)
        return judge(guard, figures)

    monkeypatch.setattr(trial, "judge", counting)
    for _ in range(1024):
        env.request("a", "key")
    assert looks[:2] == [10, 11]
    assert len(looks) < 600
    env.puppet("a", 2).error = Internal("broken")
    for _ in range(6):
        env.request("a", "key")
    assert "error_rate" in trial_of(env).rejected


def test_a_callers_mistake_is_not_the_canarys_fault() -> None:
    """In a split there is no second opinion: while all go to it, the code has to do."""
    env = on_trial("split_fraction: 1 guard { max_error_rate: 0 }")
    env.puppet("a", 2).error = InvalidArgument("bad row")
    assert env.request("a", "key") == 2
    assert trial_of(env).rejected == ""


@pytest.mark.parametrize("error", [InvalidArgument("bad row"), Cancelled("gave up")])
def test_callers_who_fail_with_both_versions_are_no_fault(error: ServingError) -> None:
    """What they do to the primary too, the canary is not blamed for."""
    env = half_split(50)
    env.puppet("a", 1).error = env.puppet("a", 2).error = error
    for _ in range(100):
        env.request("a")
    found = trial_of(env)
    assert found.rejected == ""
    assert found.total.shown.canary_error_rate == 1.0
    assert found.total.shown.primary_error_rate == 1.0


@pytest.mark.parametrize("error", [InvalidArgument("bad row"), Cancelled("gave up")])
def test_a_canary_that_callers_fail_with_more_often_is_at_fault(
    error: ServingError,
) -> None:
    """A model that refuses everything, or whose callers give up, is its own mistake."""
    env = half_split(20)
    env.puppet("a", 2).error = error
    for _ in range(40):
        env.request("a")
    assert "error_rate" in trial_of(env).rejected


def test_a_canary_that_hangs_is_rejected() -> None:
    """It never has the samples that a guard asks for; what it could not take counts."""
    env = on_trial("tee_fraction: 1 guard { min_samples: 50 max_error_rate: 0.1 }")
    env.puppet("a", 2).is_holding = True
    for _ in range(60):
        assert env.request("a") == 1
    assert trial_of(env).rejected == ""  # it may be slow
    env.clock.advance(16.0)
    for _ in range(49):
        env.request("a")
    assert trial_of(env).rejected == ""
    assert env.request("a") == 1
    found = trial_of(env)
    assert found.rejected.startswith("guard: error_rate 1 > 0.1 (after 50 requests, 0 ")
    assert (found.num_teed, found.num_dropped) == (17, 93)


def test_copies_go_on_when_a_canary_that_hung_answers() -> None:
    """What came meanwhile is not computed, and nothing is counted twice."""
    env = on_trial("tee_fraction: 1 guard { min_samples: 50 max_error_rate: 0.1 }")
    canary = env.puppet("a", 2)
    canary.is_holding = True
    env.request("a")
    env.clock.advance(16.0)
    env.request("a")
    canary.is_holding = False
    canary.release()
    env.settle()
    env.request("a")
    found = trial_of(env)
    assert (found.num_teed, found.num_dropped) == (2, 1)
    assert found.total.shown.num_requests == 2
    assert found.total.shown.canary_error_rate == pytest.approx(1 / 3)


def test_a_canary_that_refuses_what_the_primary_takes_is_at_fault() -> None:
    """A changed signature fails its share of a split before anything runs."""
    env = half_split(20)
    for _ in range(20):
        env.refuse("a")  # callers' mistakes, with either version
        env.refuse("a")
    assert trial_of(env).rejected == ""
    assert trial_of(env).total.shown.canary_error_rate == 1.0
    assert trial_of(env).total.shown.primary_error_rate == 1.0
    for _ in range(40):
        env.refuse("a")
        assert env.request("a") == 1
    assert "error_rate" in trial_of(env).rejected


def test_a_rejection_outlives_a_reload_of_the_same_trial() -> None:
    """Applying the same config again is no pardon; changing the trial is."""
    fields = "tee_fraction: 1 guard { max_mean_abs_diff: 0.5 }"
    env = on_trial(fields)
    env.request("a")
    assert trial_of(env).rejected
    env.apply(with_canary(fields), model("b"))
    assert trial_of(env).rejected
    env.apply(with_canary("tee_fraction: 1 guard { max_mean_abs_diff: 9 }"))
    assert trial_of(env).rejected == ""
    assert trial_of(env).num_teed == 0


def test_pins_are_given_back() -> None:
    """Neither copies nor splits keep a version from unloading."""
    env = on_trial("tee_fraction: 1 split_fraction: 0.5")
    for index in range(20):
        env.request("a", f"key-{index}")
    for version in (1, 2):
        handle = env.core.served.look_at("a", version, None)
        assert handle.num_pins == 1
        handle.release()
