"""Version directories made from the zoo, for every test that loads one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.package.package_exporter import PackageExporter

from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource

ROWS_BY_TWO = TensorSpec(FLOAT32, (-1, 2))


def signature(
    outputs: Mapping[str, TensorSpec] | None = None,
    inputs: Mapping[str, TensorSpec] | None = None,
    *,
    batched: bool = True,
) -> Signature:
    return Signature(
        Method.PREDICT,
        inputs or {"x": ROWS_BY_TWO},
        outputs or {"y": ROWS_BY_TWO},
        batched=batched,
    )


SCALE_SIGNATURES = {
    "serving_default": signature(),
    "both": signature({"scaled": ROWS_BY_TWO, "next": ROWS_BY_TWO}),
    "named": signature({"scaled": ROWS_BY_TWO}),
    "describe": signature({"y": TensorSpec(FLOAT32, (-1, 4))}),
    "pid": signature({"y": TensorSpec(INT64, (-1, 2))}),
    **{
        name: signature()
        for name in (
            "overwrite",
            "write_weights",
            "count",
            "draw",
            "wrong_dtype",
            "wrong_rows",
            "wrong_rank",
            "fail",
            "garbled",
            "unreadable",
            "untouchable",
            "quantised",
            "meta",
            "speechless",
            "frozen",
            "exit",
            "crash",
            "slow",
        )
    },
}

SHOUT_SIGNATURES = {
    "serving_default": signature(
        {"loud": TensorSpec(STRING, (-1,)), "length": TensorSpec(INT64, (-1,))},
        {"text": TensorSpec(STRING, (-1,))},
    )
}

EMBED_SIGNATURES = {
    "serving_default": signature(
        {"y": TensorSpec(FLOAT32, (-1, 4))},
        {name: TensorSpec(INT64, (-1, 5)) for name in "abc"},
    )
}


def package(
    folder: Path,
    model: torch.nn.Module,
    signatures: Mapping[str, Signature] = SCALE_SIGNATURES,
    name: str = "scale",
    version: int = 1,
    **entry: object,
) -> ModelSource:
    """Writes a version directory with ``model`` in it, and says how to load it.

    Every signature but the default calls the method of its name.
    """
    path = folder / name / str(version)
    path.mkdir(parents=True)
    with (
        warnings.catch_warnings(action="ignore"),  # TypedStorage, inside torch
        PackageExporter(str(path / "model.pt")) as exporter,
    ):
        exporter.intern("tests.**")
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", model)
    methods = {
        key: key
        for key in signatures
        if key != "serving_default" and hasattr(model, key)
    }
    return ModelSource(
        ServableId(name, version),
        str(path),
        "torch_package",
        {"methods": methods, **entry},
        signatures,
    )


def floats(*rows: tuple[float, float]) -> TensorView:
    """A float32 [rows, 2] tensor."""
    tensor = torch.tensor(rows, dtype=torch.float32)
    return TensorView(FLOAT32, tuple(tensor.shape), tensor.numpy().tobytes())


def values(view: TensorView) -> list[object]:
    """The elements of a numeric tensor, nested."""
    dtype = getattr(torch, view.dtype.name)
    assert not isinstance(view.data, tuple)
    if not view.num_elements:
        return []
    flat = torch.frombuffer(bytearray(view.data), dtype=dtype)
    nested: list[object] = flat.view(view.shape).tolist()
    return nested
