"""What all backends have in common: the interface of an interpreter and its models.

    interpreter = InlineInterpreter("inline-0")      # or ProcessInterpreter, ...
    model = interpreter.load(source)                 # a manager thread; blocks
    model.submit(task)                               # any thread; returns at once
    model.unload()                                   # a manager thread; blocks
    interpreter.close(deadline_s)

``tests/runtime/test_conformance.py`` checks every backend against this. A free-threaded
Python would be one more backend: threads of this process that share one model.
"""

from __future__ import annotations

import logging
from typing import Protocol

from tfs.core.errors import ServingError, Unavailable
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.model_source import ModelSource


class InterpreterModel(Protocol):
    """A version loaded on an interpreter. Thread-safe.

    Implementors promise:

    1. ``submit`` keeps obligations 1 to 5 of :class:`tfs.core.servable.Servable`: it
       never blocks and never raises, ``on_done`` runs exactly once and only when
       nothing computes for the task, a marked or expired task costs no compute,
       outputs keep the signature, input buffers are let go;
    2. tasks of one interpreter run one at a time, in the order of their submission. The
       exception is a model whose ``source.concurrency`` is above 1: up to so many of
       its tasks may run at once, beside those of other models, and they begin in that
       order;
    3. a full queue answers Unavailable at once;
    4. ``unload`` returns when nothing of the model runs, waiting tasks have been
       answered Unavailable, and its memory was given back to the system. It may be
       called again, and afterwards ``submit`` answers Unavailable.
    """

    @property
    def source(self) -> ModelSource:
        """The source that was loaded."""
        ...

    def submit(self, task: InferenceTask) -> None:
        """Starts the task; the outcome comes through ``task.on_done``."""
        ...

    def compute_now(
        self, signature_name: str, make_inputs: MakeInputs
    ) -> Outcome | None:
        """Calls the model before it returns; does not raise.

        Returns None, with nothing done, if that is not possible at once; the caller
        then submits a task. Checks no deadline. A model for which it is never possible
        derives from :class:`OnAnotherThread`.
        """
        ...

    def unload(self) -> None:
        """Frees the model. Blocks; idempotent."""
        ...

    # What only the backend sees; whoever measures a model asks for it before it serves.

    @property
    def pid(self) -> int:
        """The process whose memory and processor time are the model's."""
        ...

    @property
    def loaded(self) -> ModelProfile:
        """What loading it took, and what it changed in its process, as far as is known.

        The changes cover all calls up to the last ``two_thread_scaling``, too.
        """
        ...

    @property
    def last_call_s(self) -> float | None:
        """Seconds that the last call took where it ran, without the way there and back.

        None if there is no such way, or before the first call.
        """
        ...

    @property
    def staged_status(self) -> AutoStatus | None:
        """What joining between stages was worth; None if it is computed whole."""
        ...

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Returns calls per second of two threads over one. Blocks about that long.

        Nobody else may call the model meanwhile. None if it could not be measured.

        Raises:
            ServingError: The model or its interpreter failed.

        """
        ...

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Calls the model once wherever it is loaded, to pay for first calls. Blocks.

        In processes this happens at their lowest priority. Only before the model
        serves, because nobody else may call it meanwhile. Its answers are dropped, and
        so are errors.
        """
        ...

    def seed(self, seed: int | None) -> bool:
        """Seeds the random numbers of its interpreters: torch's, Python's and numpy's.

        Generators that the model itself holds are left alone, because they are its
        state. Blocks. Only before the model serves, because other models of an
        interpreter share its generators.

        Args:
            seed: The seed; None takes one from the system.

        Returns:
            Whether it was done.

        """
        ...


class OnAnotherThread:
    """Answers prompt calls for a model that never runs on the caller's thread."""

    def compute_now(
        self, signature_name: str, make_inputs: MakeInputs
    ) -> Outcome | None:
        """Returns None: a task is to be submitted."""
        return None


class Interpreter(Protocol):
    """Runs models one call at a time. Thread-safe.

    Implementors promise:

    1. ``load`` either returns a model that answers or raises a ``ServingError`` that
       names the version, and then leaves nothing behind: no memory, module, thread
       or process;
    2. several models live side by side, also of the same name, with modules, globals
       and weights of their own;
    3. a model that fails, exits or raises anything at all fails its call only;
    4. a model that writes to its weights changes nobody else's;
    5. a call runs in ``torch.inference_mode``, in eval mode and with
       ``intra_op_threads`` threads;
    6. ``close`` answers all waiting tasks with Unavailable, ends by its deadline and
       can be repeated; after it ``load`` raises Unavailable.
    """

    def load(self, source: ModelSource) -> InterpreterModel:
        """Loads a version. Blocks; call it on a manager thread.

        Raises:
            ServingError: The version does not load; nothing is left of it.

        """
        ...

    @property
    def num_models(self) -> int:
        """How many versions are loaded now."""
        ...

    def close(self, deadline_s: float | None = None) -> None:
        """Ends the interpreter by ``deadline_s`` (monotonic; None: once it is idle)."""
        ...


log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.1


def queue_full(servable: ServableId, limit: int) -> ServingError:
    """Returns the answer to a task that finds no room."""
    return Unavailable(
        f"{servable.slashed}: {limit} calls wait for its interpreter already; "
        "retry after a pause",
        retry_after_s=RETRY_AFTER_S,
    )


def unloaded(servable: ServableId) -> ServingError:
    """Returns the answer to a task whose model is going or gone."""
    return Unavailable(f"{servable.slashed} is being unloaded; request another version")


def closed(name: str) -> ServingError:
    """Returns the answer to use of an interpreter that is ending."""
    return Unavailable(f"interpreter {name} is shutting down")


def finish(task: InferenceTask, outcome: Outcome) -> None:
    """Delivers the outcome; if ``on_done`` raises, that is logged and not passed on."""
    try:
        task.on_done(outcome)
    except Exception:
        log.exception("event=on_done_failed signature=%s", task.signature_name)
