"""Calls of a model before it serves, whatever becomes of them."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.answers import ask
from tests.runtime.meddlers import Meddler
from tests.runtime.packaged import (
    floats,
    package,
    signature,
    values,
)
from tests.runtime.process_host import (
    ProcessHost,
    pid_of,
    wait_for_successor,
)
from tests.runtime.zoo import (
    HangsTogether,
    Scale,
)
from tfs.runtime.process.crash_policy import CrashPolicy
from tfs.runtime.process.process_options import ProcessOptions

X = {"x": floats((1, 2))}


def test_a_rehearsal_is_a_call_that_nobody_hears_of(
    host: ProcessHost, tmp_path: Path
) -> None:
    """It warms the process up; what goes wrong shows when the model is called again."""
    model = host.pool().load(package(tmp_path, Scale()))
    model.rehearse("count", X, 30.0)
    assert values(ask(model, X, "count").outputs()["y"]) == [[2, 2]]
    model.rehearse("fail", X, 30.0)
    first_pid = pid_of(model)
    model.rehearse("crash", {"x": floats((-1, 0))}, 30.0)
    wait_for_successor(model, first_pid)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_rehearsal_that_hangs_takes_its_worker_along(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Nothing may still run in the model when it serves."""
    model = host.pool().load(package(tmp_path, Scale()))
    first_pid = pid_of(model)
    model.rehearse("slow", {"x": floats((600, 0))}, 0.01)
    wait_for_successor(model, first_pid)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_what_calls_change_of_the_process_is_seen_when_it_is_measured(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Loading showed nothing: the model does it in its calls."""
    deed = "set_the_environment"
    signatures = {"serving_default": signature(), deed: signature()}
    model = host.pool().load(package(tmp_path, Meddler(), signatures))
    model.two_thread_scaling("serving_default", X, 0.01)
    assert model.loaded.process_changes == ""
    model.two_thread_scaling(deed, X, 0.01)
    assert model.loaded.process_changes == "the environment"


def test_a_model_that_two_threads_hang_is_measured_no_more(
    host: ProcessHost, tmp_path: Path
) -> None:
    """What is known of it is nothing, and its worker is replaced, with nobody to blame."""
    # One crash that is blamed on it would end its use.
    options = ProcessOptions(call_timeout_s=1.0, crashes=CrashPolicy(max_crashes=1))
    loaded = host.pool(options).load(
        package(
            tmp_path, HangsTogether(), {"serving_default": signature()}, name="meets"
        )
    )
    pid = pid_of(loaded)
    assert loaded.two_thread_scaling("serving_default", X, 0.05) is None
    wait_for_successor(loaded, pid)
    assert values(ask(loaded, X).outputs()["y"]) == values(X["x"])
    assert "two calls of its model at once hang" in loaded.last_death
