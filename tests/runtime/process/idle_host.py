"""An interpreter as its models know it, which nobody asks for anything."""

from __future__ import annotations

from collections.abc import Mapping

from tfs.core.servable import InferenceTask
from tfs.runtime.process.process_model import ModelRequest, ProcessModel
from tfs.runtime.process.process_options import ProcessOptions


class IdleHost:
    """A model's host; whoever asks it for anything but its process fails.

    Args:
        pid: Of the worker there would be.

    """

    name = "idle"
    num_pending = 0
    staged_words: tuple[int, int] | None = None

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid
        self.options = ProcessOptions()

    def enqueue(self, model: ProcessModel, task: InferenceTask) -> None:
        raise AssertionError(task)

    def unload(self, model: ProcessModel) -> None:
        raise AssertionError(model)

    def ask(self, request: ModelRequest) -> Mapping[str, object]:
        raise AssertionError(request)
