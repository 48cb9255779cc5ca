"""What may be computed in stages, as platforms know it: a module, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from tfs.runtime.guest.model_source import ModelSource


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A module, and how its inputs are given. Immutable.

    Attributes:
        module: Is called once for a batch.
        positional: Names of the inputs that it takes by position; others are keywords.

    """

    module: nn.Module
    positional: tuple[str, ...] = ()

    def __call__(self, **inputs: Any) -> Any:
        args = [inputs.pop(name) for name in self.positional]
        return self.module(*args, **inputs)


def called_modules(source: ModelSource, target: object) -> dict[str, Cuttable]:
    """Returns the signatures for which ``target`` is a module that is called itself.

    Without containers of tensors: they would have to be put together in each stage.
    """
    if not isinstance(target, nn.Module):
        return {}
    methods = source.texts("methods")
    apart: set[object] = set()
    for key in ("arguments", "flattened"):
        names = source.entry.get(key, ())
        apart |= set(names) if isinstance(names, dict | list | tuple) else set()
    return {
        name: Cuttable(target)
        for name in source.signatures
        if methods.get(name, "forward") == "forward" and name not in apart
    }
