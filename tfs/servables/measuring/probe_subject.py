"""A loaded version, as a measurement sees it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.core.servable import (
    CancelToken,
    InferenceTask,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.signature import Signature


class ProbeSubject(Protocol):
    """A loaded version as a probe sees it. Confined to the probing thread."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        ...

    @property
    def pid(self) -> int:
        """The process whose memory and processor time are the model's."""
        ...

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took where it ran; None if only the wait is known.

        A model that will run elsewhere is judged by its own time, without the way to
        the process in which it is probed.
        """
        ...

    @property
    def process_changes(self) -> str:
        """What it has changed of its whole process so far, as far as is known."""
        ...

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
        """Runs one call and waits for it.

        Raises:
            ServingError: It failed, or took too long.

        """
        ...

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Returns calls per second of two threads over one; None if unknown."""
        ...

    def seed(self, seed: int | None) -> bool:
        """Sets the random numbers that it draws; returns whether that was possible.

        May be called only before it serves. None takes a seed from the system.
        """
        ...


class ProfileSubject(ProbeSubject, Protocol):
    """A version that is to serve next, as the profiler sees it."""

    def rehearse(
        self, signature_name: str, inputs: Tensors, timeout_s: float
    ) -> float | None:
        """Makes a first call, which costs most, beside serving models, and waits.

        May be called only before the version serves. The answer, or error, is dropped.

        Returns:
            Processor seconds of the call; infinite if it failed; None if it was not
            made, because it cannot be called beside others.

        """
        ...


Scaling = Callable[[str, Tensors, float], "float | None"]
Rehearse = Callable[[str, Tensors, float], "float | None"]


class ServableSubject:
    """Any servable, called through ``submit``, from outside its interpreter.

    Args:
        servable: The version.
        pid: The process in which it computes; None is this one.
        scaling: Tells how two threads scale; None if that is not known.
        call_s: Returns what the last call took in the interpreter, if that is known.
        rehearse: Calls the version beside serving models; None if it cannot.
        changes: Returns what it has changed of its whole process so far.
        seed: Sets its random numbers; None if it cannot.

    """

    def __init__(
        self,
        servable: Servable,
        pid: int | None = None,
        scaling: Scaling | None = None,
        call_s: Callable[[], float | None] = lambda: None,
        rehearse: Rehearse | None = None,
        changes: Callable[[], str] = str,
        seed: Callable[[int | None], bool] | None = None,
    ) -> None:
        self._servable = servable
        self._rehearse = rehearse
        self._scaling = scaling
        self._call_s = call_s
        self._changes = changes
        self._seed = seed
        self.pid = os.getpid() if pid is None else pid

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._servable.signatures

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the interpreter measured for the last call."""
        return self._call_s()

    @property
    def process_changes(self) -> str:
        """What the interpreter saw it change of its whole process."""
        return self._changes()

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
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
        if self._scaling is None:
            return None
        return self._scaling(signature_name, inputs, duration_s)

    def seed(self, seed: int | None) -> bool:
        return self._seed is not None and self._seed(seed)

    def rehearse(
        self, signature_name: str, inputs: Tensors, timeout_s: float
    ) -> float | None:
        if self._rehearse is None:
            return None
        return self._rehearse(signature_name, inputs, timeout_s)
