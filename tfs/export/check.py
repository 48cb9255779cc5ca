"""Checks a version against the module that it was made of."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tfs.export.signatures.signature import Derived
from tfs.export.trial.trial import tried
from tfs.export.values import Value, close, view_of
from tfs.runtime.guest.torch_tensor import to_torch


def differing_outputs(
    folder: str, platform: str, derived: Mapping[str, Derived], *, is_exact: bool
) -> dict[str, list[str]]:
    """Tries a version; returns the outputs that differ from the module's, by signature.

    Raises:
        InvalidArgument: The version cannot be served; says what to do.

    """
    outputs = tried(folder, platform, _device(derived))
    differing = {
        key: [
            name
            for name, value in each.outputs.items()
            if view_of(value) != outputs[key][name]
            and (is_exact or not close(_on_cpu(value), to_torch(outputs[key][name])))
        ]
        for key, each in derived.items()
    }
    return {key: names for key, names in differing.items() if names}


def _on_cpu(value: Value) -> Value:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _device(derived: Mapping[str, Derived]) -> str:
    """Returns the device of the author's example, so that the same kernels run."""
    for each in derived.values():
        for value in each.example.values():
            if isinstance(value, torch.Tensor):
                return str(value.device)
    return "cpu"
