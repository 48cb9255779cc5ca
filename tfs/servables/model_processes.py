"""The processes that run a version."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.process.process_model import ProcessModel


@dataclass(frozen=True, slots=True)
class ModelProcesses:
    """The processes that run a version. Immutable.

    Attributes:
        pids: Processes that run now. One that has just died is missing until it is
            back.
        num_deaths: How often a process died.
        last_death: How the last one died; "" before the first.

    """

    pids: tuple[int, ...]
    num_deaths: int = 0
    last_death: str = ""


def processes_of(model: InterpreterModel) -> ModelProcesses | None:
    """Returns the processes that run a model; None if it runs in this one."""
    if not isinstance(model, ProcessModel):
        return None
    return ModelProcesses(tuple(model.pids), model.num_deaths, model.last_death)
