"""A loaded version, as a measurement sees it, and calls with its example."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import (
    CancelToken,
    InferenceTask,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.signature import Signature
from tfs.servables.loaded_version import PlacedModel
from tfs.servables.measuring.probe_inputs import ProbeInputs

log = logging.getLogger(__name__)

TRANSIENT: Final = (DeadlineExceeded, ResourceExhausted, Unavailable)
"""Errors that another moment may not bring: there was no time, or no room."""


class ProbeSubject:
    """A loaded version as a measurement sees it: a servable, called from outside.

    Confined to the measuring thread.

    Args:
        servable: The version. Of a :class:`PlacedModel` the interpreter tells more than
            its answers.

    """

    def __init__(self, servable: Servable) -> None:
        self._servable = servable
        self._model = servable.model if isinstance(servable, PlacedModel) else None
        self.signatures: Mapping[str, Signature] = servable.signatures

    @property
    def pid(self) -> int:
        """The process whose memory and processor time are the model's, if known."""
        return self._model.pid if self._model else os.getpid()

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took where it ran; None if only the wait is known.

        A model that will run elsewhere is judged by its own time, without the way to
        the process in which it is probed.
        """
        return self._model.last_call_s if self._model else None

    @property
    def process_changes(self) -> str:
        """What it has changed of its whole process so far, as far as is known."""
        return self._model.loaded.process_changes if self._model else ""

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
        """Runs one call and waits for it.

        Raises:
            ServingError: It failed, or took too long.

        """
        signature = self.signatures[signature_name]
        finished = threading.Event()
        outcomes: list[Outcome] = []

        def on_done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            finished.set()

        num_rows = signature.check_inputs(inputs)
        task = InferenceTask(
            signature_name,
            signature,
            inputs,
            on_done,
            num_rows=num_rows,
            cancel=CancelToken(),
        )
        self._servable.submit(task)
        if not finished.wait(timeout_s):
            late = DeadlineExceeded(
                f"{self._servable.id.slashed}: a probe call took over {timeout_s:g} s"
            )
            task.cancel.cancel(late)
            raise late
        (outcome,) = outcomes
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Returns calls per second of two threads over one; None if unknown."""
        if self._model is None:
            return None
        return self._model.two_thread_scaling(signature_name, inputs, duration_s)

    def seed(self, seed: int | None) -> bool:
        """Sets the random numbers that it draws; returns whether that was possible.

        May be called only before it serves. None takes a seed from the system.
        """
        return self._model is not None and self._model.seed(seed)

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Makes a first call, which costs most, beside serving models, and waits.

        May be called only before the version serves. The answer, or error, is dropped.
        """
        if self._model is not None:
            self._model.rehearse(signature_name, inputs, timeout_s)


def warm_up(
    call: Callable[[str, Tensors, float], object],
    signatures: Mapping[str, Signature],
    path: str,
    sizes_of: Callable[[str], Sequence[int]],
    deadline_s: float,
    clock: Clock,
    *,
    num_rounds: int = 1,
    predict_s: Callable[[str, int], float] = lambda name, num_rows: 0.0,
) -> None:
    """Calls every signature with its example until the deadline.

    Failures are logged but fail nothing.

    Args:
        call: Calls a signature with inputs, for so many seconds at most.
        signatures: The version's, by key.
        path: The version's directory, which has the author's example.
        sizes_of: Returns the rows of the calls of a batched signature, by its key.
        deadline_s: When to stop, by ``clock``.
        clock: Tells the time.
        num_rounds: How many calls are made of each size.
        predict_s: Predicts the seconds of a call. A call that would not end in time is
            left out.

    """
    failed: set[str] = set()
    inputs = {name: ProbeInputs.of(path, each) for name, each in signatures.items()}
    calls_of_a_round = [
        (name, num_rows)
        for name, signature in signatures.items()
        for num_rows in (sizes_of(name) if signature.batched else (1,))
    ]
    for name, num_rows in num_rounds * calls_of_a_round:
        yield_to_requests()
        left_s = deadline_s - clock.now()
        if left_s <= 0:
            break
        if name in failed or predict_s(name, num_rows) > left_s:
            continue
        try:
            call(name, inputs[name].batch(num_rows), left_s)
        except ServingError as error:
            log.info("event=warm_up_failed signature=%s error=%s", name, error)
            failed.add(name)


def failing_examples(
    subject: ProbeSubject, path: str, timeout_s: float
) -> dict[str, ServingError]:
    """Calls every signature with all rows of its author's example; returns what fails.

    All rows, because some models take no single row, or no more than a few. Made-up
    values prove nothing, because the model may never get such values.
    """
    errors: dict[str, ServingError] = {}
    for name, signature in subject.signatures.items():
        inputs = ProbeInputs.of(path, signature)
        if not inputs.is_authors:
            continue
        yield_to_requests()
        try:
            subject.call(name, inputs.batch(inputs.num_different), timeout_s)
        except Cancelled:
            continue
        except ServingError as error:
            errors[name] = error
    return errors
