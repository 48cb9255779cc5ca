"""What every backend promises (tfs/runtime/interpreter.py), held against each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.runtime.answers import Answer, ask
from tests.runtime.dlmopen_host import needs_dlmopen
from tests.runtime.packaged import (
    EMBED_SIGNATURES,
    SCALE_SIGNATURES,
    SHOUT_SIGNATURES,
    floats,
    package,
    values,
)
from tests.runtime.process_host import process_host
from tests.runtime.zoo import (
    Embed,
    ExitsWhenLoaded,
    ForksAndWaits,
    Scale,
    Shout,
    Threads,
)
from tests.threads import run_together
from tfs.core.dtype import INT64, STRING
from tfs.core.errors import (
    Cancelled,
    Code,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.servable import CancelToken, InferenceTask, Outcome
from tfs.core.tensor_view import TensorView
from tfs.runtime.dlmopen.dlmopen_interpreter import DlmopenInterpreter
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter, InterpreterModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.testing.patience import PATIENCE_S

MAX_QUEUED = 4


@contextlib.contextmanager
def inline() -> Iterator[Interpreter]:
    interpreter = InlineInterpreter("inline-0", max_queued=MAX_QUEUED)
    yield interpreter
    interpreter.close(time.monotonic() + PATIENCE_S)


@contextlib.contextmanager
def process() -> Iterator[Interpreter]:
    with process_host() as host:
        interpreter = host.pool(ProcessOptions(max_queued=MAX_QUEUED))
        yield interpreter


@contextlib.contextmanager
def dlmopen() -> Iterator[Interpreter]:
    needs_dlmopen()
    interpreter = DlmopenInterpreter("dlmopen-0", max_queued=MAX_QUEUED)
    yield interpreter
    interpreter.close(time.monotonic() + PATIENCE_S)


BACKENDS = {"dlmopen": dlmopen, "inline": inline, "process": process}


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter]:
    """One interpreter for all tests of a backend: what one test does must not show."""
    with BACKENDS[request.param]() as interpreter:
        yield interpreter


@pytest.fixture(params=sorted(BACKENDS))
def fresh(request: pytest.FixtureRequest) -> Iterator[Interpreter]:
    """An interpreter of the test's own, which it may close."""
    with BACKENDS[request.param]() as interpreter:
        yield interpreter


@pytest.fixture
def loaded(interpreter: Interpreter, tmp_path: Path) -> Iterator[InterpreterModel]:
    """A loaded model, which is unloaded after the test."""
    model = interpreter.load(package(tmp_path, Scale()))
    yield model
    model.unload()


def test_a_model_answers_as_it_does_outside(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """The result equals the plain model's bit for bit."""
    torch.manual_seed(7)
    model = Embed().eval()
    loaded = interpreter.load(package(tmp_path, model, EMBED_SIGNATURES))
    inputs = {name: torch.randint(0, 50, (6, 5)) for name in "abc"}
    views = {
        name: TensorView(INT64, (6, 5), tensor.numpy().tobytes())
        for name, tensor in inputs.items()
    }
    with torch.inference_mode():
        plain = model(**inputs)
    outputs = ask(loaded, views).outputs()
    assert outputs["y"].data == plain.numpy().tobytes()
    assert outputs["y"].shape == (6, 4)
    loaded.unload()


def test_inputs_go_in_by_name(interpreter: Interpreter, tmp_path: Path) -> None:
    """The order in which a request names its inputs does not matter."""
    loaded = interpreter.load(package(tmp_path, Embed().eval(), EMBED_SIGNATURES))
    views = {
        name: TensorView(INT64, (1, 5), bytes([index] + [0] * 7) * 5)
        for index, name in enumerate("abc")
    }
    straight = ask(loaded, views).outputs()
    turned = ask(loaded, dict(reversed(views.items()))).outputs()
    assert straight == turned
    loaded.unload()


@pytest.mark.parametrize(
    ("signature_name", "expected"),
    [
        ("serving_default", {"y": [[2, 4]]}),
        ("both", {"scaled": [[2, 4]], "next": [[2, 3]]}),
        ("named", {"scaled": [[2, 4]]}),
        ("overwrite", {"y": [[2, 4]]}),
    ],
)
def test_outputs_come_by_name_or_by_position(
    loaded: InterpreterModel, signature_name: str, expected: dict[str, list[object]]
) -> None:
    """A tensor, a tuple in the order of the outputs, or a dict with more than asked."""
    outputs = ask(loaded, {"x": floats((1, 2))}, signature_name).outputs()
    assert {name: values(view) for name, view in outputs.items()} == expected


def test_strings_pass_as_lists_of_bytes(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """A string tensor goes in as bytes and comes out so, the empty string too."""
    loaded = interpreter.load(package(tmp_path, Shout(), SHOUT_SIGNATURES))
    text = TensorView(STRING, (3,), (b"ab", b"", b"\xff\x00z"))
    outputs = ask(loaded, {"text": text}).outputs()
    assert outputs["loud"] == TensorView(STRING, (3,), (b"AB", b"", b"\xff\x00Z"))
    assert values(outputs["length"]) == [2, 0, 3]
    loaded.unload()


def test_an_empty_batch_passes(loaded: InterpreterModel) -> None:
    """Zero rows in, zero rows out."""
    outputs = ask(
        loaded,
        {"x": TensorView(SCALE_SIGNATURES["both"].inputs["x"].dtype, (0, 2), b"")},
    ).outputs()
    assert outputs["y"].shape == (0, 2)
    assert len(outputs["y"].data) == 0


def test_a_model_runs_in_inference_mode_eval_and_with_its_threads(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """No grad, inference mode, no training, as many threads as the source says."""
    source = package(tmp_path, Scale())
    loaded = interpreter.load(source)
    two = interpreter.load(replace(source, intra_op_threads=2))
    for model, num_threads in ((loaded, 1), (two, 2), (loaded, 1)):
        outputs = ask(model, {"x": floats((1, 2))}, "describe").outputs()
        assert values(outputs["y"]) == [[0, 1, 0, num_threads]]
    loaded.unload()
    two.unload()


def test_a_model_that_writes_to_its_input_leaves_the_request_alone(
    loaded: InterpreterModel,
) -> None:
    """The request's buffer is read-only to everybody."""
    data = bytearray(floats((1, 2)).data)  # type: ignore[arg-type]
    before = bytes(data)
    view = TensorView(floats((1, 2)).dtype, (1, 2), memoryview(data))
    for _ in range(2):
        outputs = ask(loaded, {"x": view}, "overwrite").outputs()
        assert values(outputs["y"]) == [[2, 4]]
    assert bytes(data) == before


def test_a_model_that_writes_to_its_weights_changes_only_itself(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """Two loads of one version share bytes, not changes."""
    source = package(tmp_path, Scale(2.0))
    first, second = interpreter.load(source), interpreter.load(source)
    changed = ask(first, {"x": floats((1, 2))}, "write_weights").outputs()
    assert values(changed["y"]) == [[3, 6]]
    untouched = ask(second, {"x": floats((1, 2))}).outputs()
    assert values(untouched["y"]) == [[2, 4]]
    again = interpreter.load(source)
    assert values(ask(again, {"x": floats((1, 2))}).outputs()["y"]) == [[2, 4]]
    for model in (first, second, again):
        model.unload()


def test_random_numbers_are_those_that_are_asked_for(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """Who measures a model can tell one that draws lots from one that remembers."""
    model = interpreter.load(package(tmp_path, Scale()))
    x = {"x": floats((1, 1))}

    def draw() -> object:
        return values(ask(model, x, "draw").outputs()["y"])

    assert model.seed(7)
    first, second = draw(), draw()
    assert model.seed(7)
    assert draw() == first != second
    assert model.seed(None)
    assert draw() not in (first, second)
    model.unload()


def test_versions_whose_modules_share_a_name_live_side_by_side(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """Each package has classes, globals and weights of its own."""
    one = interpreter.load(package(tmp_path, Scale(2.0), version=1))
    two = interpreter.load(package(tmp_path, Scale(5.0), version=2))
    x = {"x": floats((1, 1))}
    assert values(ask(one, x, "count").outputs()["y"]) == [[1, 1]]
    assert values(ask(one, x, "count").outputs()["y"]) == [[2, 2]]
    assert values(ask(two, x, "count").outputs()["y"]) == [[1, 1]]
    assert values(ask(one, x).outputs()["y"]) == [[2, 2]]
    assert values(ask(two, x).outputs()["y"]) == [[5, 5]]
    one.unload()
    assert values(ask(two, x, "count").outputs()["y"]) == [[2, 2]]
    two.unload()


@pytest.mark.parametrize(
    ("signature_name", "complaint"),
    [
        ("fail", "ValueError: no such thing"),
        ("garbled", "ValueError: half a \\ud800 pair"),
        ("speechless", "Speechless"),
        ("frozen", "Frozen"),
        ("exit", "SystemExit"),
        ("unreadable", "SystemExit: no words"),
        ("untouchable", "Speechless"),
        ("quantised", "output 'y' is quint8[1, 2], its signature promises float32"),
        ("meta", "meta tensor"),
        ("wrong_dtype", "output 'y' is float64"),
        ("wrong_rows", "output 'y' is float32[0, 2]"),
        ("wrong_rank", "output 'y' is float32[1]"),
    ],
)
def test_a_call_that_fails_fails_alone(
    loaded: InterpreterModel, signature_name: str, complaint: str
) -> None:
    """Whatever a model raises or returns, the error names it and the next call works."""
    error = ask(loaded, {"x": floats((1, 2))}, signature_name).error()
    assert error.code is Code.INTERNAL
    assert "scale/1" in error.message
    assert repr(signature_name) in error.message
    assert complaint in error.message
    assert "/" not in error.message.replace("scale/1", "")
    assert values(ask(loaded, {"x": floats((1, 2))}).outputs()["y"]) == [[2, 4]]


@pytest.mark.parametrize("first", [1.0, -1.0], ids=["returns", "raises"])
def test_a_fork_that_comes_back_from_a_model_ends(
    interpreter: Interpreter, tmp_path: Path, first: float
) -> None:
    """It would answer a second time, or run the server's loop on the server's sockets."""
    model = interpreter.load(package(tmp_path, ForksAndWaits(), name="forks"))
    answer = ask(model, {"x": floats((first, 0))})
    assert values(answer.outputs()["y"]) == [[0, 0]]


def test_a_version_whose_code_exits_does_not_load(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """sys.exit() ends nobody's thread: the load fails by name, others go on."""
    good = interpreter.load(package(tmp_path, Scale()))
    signatures = {"serving_default": SCALE_SIGNATURES["serving_default"]}
    source = package(tmp_path, ExitsWhenLoaded(), signatures, name="exits")
    with pytest.raises(Internal, match=r"exits/1.*ended its interpreter.*SystemExit"):
        interpreter.load(source)
    assert values(ask(good, {"x": floats((1, 2))}).outputs()["y"]) == [[2, 4]]
    good.unload()


def test_a_model_may_start_threads(interpreter: Interpreter, tmp_path: Path) -> None:
    """They compute as the model does, and leave nothing that harms a later call."""
    signatures = {"serving_default": SCALE_SIGNATURES["serving_default"]}
    loaded = interpreter.load(package(tmp_path, Threads(), signatures))
    for _ in range(30):
        outputs = ask(loaded, {"x": floats((1, 2))}).outputs()
        assert values(outputs["y"]) == [[28, 56]]
    loaded.unload()


def test_a_task_that_was_cancelled_costs_no_compute(loaded: InterpreterModel) -> None:
    """A marked task gets its mark as the answer, and the model is not called."""
    token = CancelToken()
    token.cancel(Cancelled("the client left"))
    error = ask(loaded, {"x": floats((1, 2))}, "count", cancel=token).error()
    assert error is token.error
    assert values(ask(loaded, {"x": floats((1, 2))}, "count").outputs()["y"]) == [
        [1, 1]
    ]


def test_a_task_past_its_deadline_costs_no_compute(loaded: InterpreterModel) -> None:
    """An expired task is answered so, and the model is not called."""
    past_s = time.monotonic() - 1
    error = ask(loaded, {"x": floats((1, 2))}, "count", deadline_s=past_s).error()
    assert isinstance(error, DeadlineExceeded)
    assert values(ask(loaded, {"x": floats((1, 2))}, "count").outputs()["y"]) == [
        [1, 1]
    ]


def test_a_task_cancelled_while_it_waits_is_dropped(loaded: InterpreterModel) -> None:
    """The mark counts until the very call."""
    token = CancelToken()
    running = ask(loaded, {"x": floats((0.2, 0))}, "slow")
    waiting = ask(loaded, {"x": floats((1, 1))}, "count", cancel=token)
    token.cancel(Cancelled("the client left"))
    assert isinstance(waiting.error(), Cancelled)
    running.outputs()
    assert values(ask(loaded, {"x": floats((1, 1))}, "count").outputs()["y"]) == [
        [1, 1]
    ]


def test_a_full_queue_refuses_at_once(loaded: InterpreterModel) -> None:
    """One call more than fits is Unavailable, with a time to retry; the rest pass."""
    running = ask(loaded, {"x": floats((0.5, 0))}, "slow")
    answers = [ask(loaded, {"x": floats((1, 1))}) for _ in range(2 * MAX_QUEUED + 8)]
    assert isinstance(answers[-1].error(), Unavailable)
    assert not running.is_there
    running.outputs()
    outcomes = [answer.outcome() for answer in answers]
    errors = [each for each in outcomes if isinstance(each, ServingError)]
    assert len(errors) < len(answers)
    assert all(isinstance(error, Unavailable) for error in errors)
    assert all(error.retry_after_s for error in errors)


def test_tasks_run_one_at_a_time_in_order(loaded: InterpreterModel) -> None:
    """What was submitted first is answered first."""
    answers = [ask(loaded, {"x": floats((0, 0))}, "count").outputs() for _ in range(3)]
    assert [values(each["y"]) for each in answers] == [[[1, 1]], [[2, 2]], [[3, 3]]]


def test_answers_come_once_from_many_submitters(loaded: InterpreterModel) -> None:
    """Every task of every thread is answered exactly once, with its own rows."""
    wrong: list[object] = []

    def submit(start: int) -> None:
        for value in range(start, start + 20):
            answer = ask(loaded, {"x": floats((value, value))})
            if values(answer.outputs()["y"]) != [[2 * value, 2 * value]]:
                wrong.append(value)

    run_together(*(partial(submit, 100 * n) for n in range(4)))
    assert wrong == []


def test_an_unloaded_model_answers_unavailable(
    loaded: InterpreterModel, interpreter: Interpreter
) -> None:
    """Unloading twice is harmless, and afterwards every task is refused."""
    before = interpreter.num_models
    loaded.unload()
    loaded.unload()
    error = ask(loaded, {"x": floats((1, 2))}).error()
    assert isinstance(error, Unavailable)
    assert "scale/1" in error.message
    assert interpreter.num_models == before - 1


def test_unloading_answers_what_waits_and_waits_for_what_runs(
    loaded: InterpreterModel,
) -> None:
    """No task is lost, and none computes after unload returned."""
    running = ask(loaded, {"x": floats((0.2, 0))}, "slow")
    waiting = [ask(loaded, {"x": floats((1, 1))}) for _ in range(3)]
    loaded.unload()
    assert running.is_there
    for answer in (running, *waiting):
        outcome = answer.outcome()
        assert not isinstance(outcome, ServingError) or isinstance(outcome, Unavailable)


def _lacks_archive(source_path: Path) -> None:
    (source_path / "model.pt").unlink()


def _has_garbage(source_path: Path) -> None:
    (source_path / "model.pt").write_bytes(b"PK\3\4 no archive")


def _is_cut(source_path: Path) -> None:
    archive = source_path / "model.pt"
    archive.write_bytes(archive.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_lacks_archive, FailedPrecondition),
        (_has_garbage, DataLoss),
        (_is_cut, DataLoss),
    ],
)
def test_a_damaged_version_is_refused_and_leaves_nothing(
    interpreter: Interpreter,
    tmp_path: Path,
    damage: Callable[[Path], None],
    kind: type[ServingError],
) -> None:
    """The error names the version; the interpreter serves on."""
    source = package(tmp_path, Scale())
    damage(Path(source.path))
    before = interpreter.num_models
    with pytest.raises(kind, match="scale/1"):
        interpreter.load(source)
    assert interpreter.num_models == before


def test_an_entry_that_names_nothing_is_refused(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """A missing resource or method is said by name."""
    source = package(tmp_path, Scale())
    with pytest.raises(NotFound, match=r"scale/1.*other\.pkl"):
        interpreter.load(replace(source, entry={"resource": "other.pkl"}))
    with pytest.raises(InvalidArgument, match=r"scale/1.*no_such_method"):
        interpreter.load(
            replace(source, entry={"methods": {"serving_default": "no_such_method"}})
        )


def test_a_version_needs_its_directory_only_while_it_loads(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """Overwriting or deleting the archive does not touch a loaded model."""
    source = package(tmp_path, Scale())
    loaded = interpreter.load(source)
    archive = Path(source.path) / "model.pt"
    archive.write_bytes(b"")
    archive.unlink()
    assert values(ask(loaded, {"x": floats((1, 2))}).outputs()["y"]) == [[2, 4]]
    loaded.unload()


def test_closing_answers_everything_and_refuses_loads(
    fresh: Interpreter, tmp_path: Path
) -> None:
    """Every waiting task is answered Unavailable; closing again is harmless."""
    source = package(tmp_path, Scale())
    loaded = fresh.load(source)
    answers = [ask(loaded, {"x": floats((0.1, 0))}, "slow") for _ in range(3)]
    fresh.close(time.monotonic() + PATIENCE_S)
    fresh.close(time.monotonic() + PATIENCE_S)
    for answer in answers:
        outcome = answer.outcome()
        assert not isinstance(outcome, Internal)
    assert isinstance(ask(loaded, {"x": floats((1, 2))}).error(), Unavailable)
    with pytest.raises(Unavailable):
        fresh.load(source)
    loaded.unload()


def test_an_answer_may_ask_again(loaded: InterpreterModel) -> None:
    """on_done may submit: nothing is held while it runs."""
    signature = loaded.source.signatures["serving_default"]
    second = Answer()

    def ask_again(outcome: Outcome) -> None:
        assert not isinstance(outcome, ServingError)
        inputs = {"x": outcome["y"]}
        loaded.submit(InferenceTask("serving_default", signature, inputs, second.take))

    first = {"x": floats((1, 1))}
    loaded.submit(InferenceTask("serving_default", signature, first, ask_again))
    assert values(second.outputs()["y"]) == [[4, 4]]
