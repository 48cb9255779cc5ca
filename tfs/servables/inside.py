"""Finds what a loaded model offers besides answers, whatever it is wrapped in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfs.core.servable import Tensors
from tfs.runtime.interpreter import (
    InterpreterModel,
    MeasurableModel,
    RehearsableModel,
    SeedableModel,
)
from tfs.runtime.placed_model import PlacedModel
from tfs.runtime.pooled_model import PooledModel
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


def measurable_of(model: InterpreterModel) -> MeasurableModel | None:
    """Returns the model that a probe's calls reach; None if it cannot be measured."""
    if isinstance(model, PlacedModel):
        model = model.model
    return model if isinstance(model, MeasurableModel) else None


def rehearsal_of(
    model: InterpreterModel,
) -> Callable[[str, Tensors, float], float | None] | None:
    """Returns a function that calls a model beside others; None if there is none."""
    if isinstance(model, PlacedModel):
        model = model.model
    return model.rehearse if isinstance(model, RehearsableModel) else None


def seeding_of(model: InterpreterModel) -> Callable[[int | None], bool] | None:
    """Returns a function that sets a model's random numbers; None if there is none."""
    if isinstance(model, PlacedModel):
        model = model.model
    return model.seed if isinstance(model, SeedableModel) else None


def processes_of(model: InterpreterModel) -> ModelProcesses | None:
    """Returns the processes that run a model; None if it runs in this one."""
    if isinstance(model, PlacedModel):
        model = model.model
    members: list[object] = [model]
    if isinstance(model, PooledModel):
        members = [each for _, each in model.members]
    workers = [each for each in members if isinstance(each, ProcessModel)]
    if not workers:
        return None
    health = workers[0].health  # all workers share it
    return ModelProcesses(
        tuple(each.worker_pid for each in workers if each.worker_pid is not None),
        health.num_deaths,
        health.last_death,
    )
