"""Calls a version that was saved, as an interpreter does."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tfs.core.servable_id import ServableId
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export.values import view_of
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource


def call_version(
    path: str, inputs: Mapping[str, torch.Tensor]
) -> dict[str, TensorView]:
    """Loads a version and calls its default signature by its inputs' names."""
    manifest = read_manifest(path)
    assert manifest is not None
    source = ModelSource(
        ServableId("m", 1),
        path,
        manifest.platform,
        manifest.entry,
        manifest.signatures,
    )
    model = load_guest_model(source, VersionFiles.stage(source))
    try:
        with torch.inference_mode():
            views = {name: view_of(value) for name, value in inputs.items()}
            return model.call("serving_default", views)
    finally:
        model.close()
