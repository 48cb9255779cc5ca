"""Writes the models: ``python -m tests.compare.models FOLDER``, by either tree.

Each writes them with its own ``tfs.export``, so that each has to read what either wrote.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

import torch

import tfs.export
from tests.clients import table
from tests.compare import nets
from tfs.core.dtype import FLOAT32, INT64
from tfs.core.signature import FeatureKind, FeatureSpec

_LENGTHS = """\
class Lengths:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"text": {"dtype": "string", "shape": [-1]}},
            "outputs": {
                "length": {"dtype": "int64", "shape": [-1]},
                "upper": {"dtype": "string", "shape": [-1]},
            },
        }
    }

    def validate(self, text):
        if not text:
            raise ValueError("the text is empty")

    def predict(self, text):
        if b"fail" in list(text):
            raise RuntimeError("asked to fail")
        return {"length": [len(t) for t in text], "upper": [t.upper() for t in text]}
"""


def process(policy: str, more: str = "") -> str:
    """Returns the part of a config of a model in one process, with a version policy."""
    runtime = "runtime { backend: PROCESS num_interpreters: 1 }"
    return f"model_version_policy {{ {policy} }} {runtime} {more}"


_BACKENDS: Final = {
    "echo": "INLINE",
    "graph": "INLINE",
    "lengths": "PROCESS",
    "mixing": "INLINE",
    "prices": "PROCESS",
    "script": "PROCESS",
    "tokens": "INLINE",
    "whole": "PROCESS",
}
"""Given, because where a measured model runs is for its measured times to say."""

_PARTS: Final = {
    **{
        name: f"runtime {{ backend: {backend} num_interpreters: 1 }}"
        for name, backend in _BACKENDS.items()
    },
    "digits": process(
        "specific { versions: 1 versions: 2 }",
        'version_labels { key: "stable" value: 1 } traffic { primary: 2 }',
    ),
    "echo": 'model_version_policy { all {} } version_labels { key: "old" value: 1 } '
    "runtime { backend: INLINE num_interpreters: 1 }",
}


def _save(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    base: Path,
    platform: str,
    parameters: str | None,
    **signature: Any,
) -> None:
    """Writes version 1 by either tree: the earlier one has no Signature to pass."""
    export: Any = tfs.export
    if hasattr(export, "Packaging"):
        packaging = export.Packaging(batching_parameters=parameters)
        whole = export.Signature(inputs, **signature)
        export.save(module, whole, base, 1, platform=platform, packaging=packaging)
        return
    export.save(
        module,
        inputs,
        base,
        1,
        platform=platform,
        batching_parameters=parameters,
        **signature,
    )


def write(folder: Path) -> None:
    """Writes every model, and the config that serves them."""
    table.export(folder)
    x, images = torch.linspace(-1, 1, 20).reshape(5, 4), folder / "digits"
    for version in (1, 2, 3):
        torch.manual_seed(version)
        net = nets.Digits().eval()
        named = vars(tfs.export)
        options = named.get("Signature") or named["SignatureOptions"]  # its first name
        embed = options({"x": x}, call="embed")
        tfs.export.save(
            net,
            {"x": x},
            images,
            version,
            method="classify",
            labels=["low", "middle", "high"],
            signatures={"embed": embed},
        )
    torch.manual_seed(0)
    prices, rooms = nets.Prices().eval(), torch.rand(4, 3)
    features = {"size": FeatureSpec("rooms", FeatureKind.FIXED, FLOAT32, (3,))}
    for name, platform in (("prices", "torch_package"), ("graph", "torch_export")):
        _save(
            prices,
            {"rooms": rooms, "bias": torch.rand(4, 1)},
            folder / name,
            platform,
            "max_batch_size { value: 4 }",
            method="regress",
            defaults={"bias": torch.ones(1, 1)},
            features=features,
        )
    linear = torch.nn.Linear(4, 2).eval()
    tfs.export.save(linear, {"input": x}, folder / "script", 1, platform="torchscript")
    ids = torch.tensor([[3, 5, 0], [7, 0, 0]])
    _save(
        nets.Tokens().eval(),
        {"ids": ids, "mask": (ids > 0).long()},
        folder / "tokens",
        "torch_package",
        None,
        dynamic={"ids": [1], "mask": [1]},
        pad={"ids": 0, "mask": 0},
        features={
            "words": FeatureSpec("ids", FeatureKind.VARLEN, INT64, pad=0),
            "mask": FeatureSpec("mask", FeatureKind.VARLEN, INT64, pad=0),
        },
    )
    tfs.export.save(
        nets.Whole(), {"x": torch.rand(6)}, folder / "whole", 1, batched=False
    )
    tfs.export.save(nets.Mixing(), {"x": x}, folder / "mixing", 1)
    (folder / "lengths.py").write_text(_LENGTHS)
    tfs.export.save_python(
        folder / "lengths.py",
        folder / "lengths",
        1,
        example_inputs={"text": ["one", "two words"]},
    )
    lookup = folder / "skus" / "1"
    lookup.mkdir(parents=True)
    (lookup / "table.csv").write_text(
        "sku,price:float32,count,name\nA1,9.5,3,one\nB2,1e-3,-7,two\n"
    )
    shutil.copytree(folder / "mixing" / "1", folder / "damaged" / "1")
    with (folder / "damaged" / "1" / "model.pt").open("ab") as payload:
        payload.write(b"x")
    (folder / "empty").mkdir()
    (folder / "models.config").write_text(config(folder))


def config(folder: Path, **changed: str) -> str:
    """Returns the config of all models; ``changed`` takes the place of some parts."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    parts = {**dict.fromkeys(names, ""), **_PARTS, **changed}
    models = [
        f'config {{ name: "{name}" base_path: "{folder / name}" {part} }}'
        for name, part in parts.items()
        if part != "left out"
    ]
    return f"model_config_list {{ {' '.join(models)} }}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
