"""Tasks whose outcome a test can wait for."""

from __future__ import annotations

import threading

from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken, InferenceTask, Outcome, Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.interpreter import InterpreterModel
from tfs.servables.loaded_version import PlacedModel
from tfs.testing.patience import PATIENCE_S


class Answer:
    """The outcome of one task, once it is there."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self.outcomes: list[Outcome] = []
        self.thread_name = ""

    def take(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.thread_name = threading.current_thread().name
        self._there.set()

    @property
    def is_there(self) -> bool:
        return self._there.is_set()

    def outcome(self, timeout_s: float = PATIENCE_S) -> Outcome:
        assert self._there.wait(timeout_s), "no outcome"
        assert len(self.outcomes) == 1
        return self.outcomes[0]

    def outputs(self) -> dict[str, TensorView]:
        outcome = self.outcome()
        if isinstance(outcome, ServingError):
            raise outcome
        return dict(outcome)

    def error(self) -> ServingError:
        outcome = self.outcome()
        assert isinstance(outcome, ServingError), outcome
        return outcome


def ask(
    model: InterpreterModel | PlacedModel,
    inputs: Tensors,
    signature_name: str = "serving_default",
    *,
    deadline_s: float | None = None,
    cancel: CancelToken | None = None,
) -> Answer:
    """Submits one task and returns its answer-to-be."""
    answer = Answer()
    first = next(iter(inputs.values()))
    model.submit(
        InferenceTask(
            signature_name,
            model.source.signatures[signature_name],
            inputs,
            answer.take,
            num_rows=first.num_rows,
            deadline_s=deadline_s,
            cancel=cancel,
        )
    )
    return answer
