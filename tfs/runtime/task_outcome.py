"""How tasks end before, during and after a call, as decided by all backends alike."""

from __future__ import annotations

import logging

from tfs.core.errors import ServingError, Unavailable
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.servable_id import ServableId

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
