"""Finds what a loaded model can tell beside its answers, whatever it is wrapped in."""

from __future__ import annotations

from tfs.runtime.interpreter import InterpreterModel, MeasurableModel
from tfs.runtime.placed_model import PlacedModel


def measurable_of(model: InterpreterModel) -> MeasurableModel | None:
    """Returns the model that a probe's calls reach, None if its backend tells nothing."""
    if isinstance(model, PlacedModel):
        model = model.model
    return model if isinstance(model, MeasurableModel) else None
