"""``tfs metadata``: prints what a model takes and returns, according to the server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers, version_number
from tfs.cli.connection import add_connection_arguments, connect
from tfs.cli.printing import table

if TYPE_CHECKING:
    from tfs.client import ModelMetadata
    from tfs.client.results import TensorInfo


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "metadata",
        help="what a model takes and gives",
        description="Asks a server for a model's signatures: the names, dtypes and "
        "shapes of inputs and outputs. A dimension of -1 is free.",
    )
    parser.add_argument("model", metavar="MODEL", help="its name on the server")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=version_number, help="ask this version")
    which.add_argument("--label", help="ask the version this label means")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    with connect(arguments) as client:
        found = client.metadata(
            arguments.model, version=arguments.version, label=arguments.label
        )
    print(_as_json(found) if arguments.json else _as_text(found))
    return 0


def _as_json(found: ModelMetadata) -> str:
    return json.dumps(
        {
            "model": found.model,
            "version": found.version,
            "signatures": {
                key: {
                    "method": signature.method,
                    "inputs": _tensors(signature.inputs),
                    "outputs": _tensors(signature.outputs),
                    "optional": sorted(signature.optional),
                }
                for key, signature in sorted(found.signatures.items())
            },
        }
    )


def _tensors(infos: Mapping[str, TensorInfo]) -> dict[str, object]:
    return {
        name: {
            "dtype": info.dtype,
            "shape": None if info.shape is None else list(info.shape),
        }
        for name, info in sorted(infos.items())
    }


def _as_text(found: ModelMetadata) -> str:
    rows = []
    for key, signature in sorted(found.signatures.items()):
        method = signature.method.rpartition("/")[2]
        for kind, infos in (("input", signature.inputs), ("output", signature.outputs)):
            for name, info in sorted(infos.items()):
                shape = "unknown" if info.shape is None else str(list(info.shape))
                is_optional = kind == "input" and name in signature.optional
                what = "optional input" if is_optional else kind
                rows.append((key, method, what, name, info.dtype, shape))
    heads = ("SIGNATURE", "METHOD", "KIND", "NAME", "DTYPE", "SHAPE")
    return f"{found.model}/{found.version}\n{table(heads, rows)}"
