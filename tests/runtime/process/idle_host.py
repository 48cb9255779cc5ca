"""An interpreter as its models know it, which nobody asks for anything."""

from __future__ import annotations

from tfs.core.servable import InferenceTask, Tensors
from tfs.runtime.process.process_model import ProcessModel


class IdleHost:
    """A model's host and its trials; whoever calls them fails.

    Args:
        pid: Of the worker there would be.

    """

    num_pending = 0

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        raise AssertionError(task)

    def unload(self, model: ProcessModel) -> None:
        raise AssertionError(model)

    def two_thread_scaling(
        self,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        duration_s: float,
    ) -> float | None:
        raise AssertionError(model)

    def rehearse(
        self,
        model: ProcessModel,
        signature_name: str,
        inputs: Tensors,
        timeout_s: float,
    ) -> None:
        raise AssertionError(model)
