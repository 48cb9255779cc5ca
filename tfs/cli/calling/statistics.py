"""``tfs statistics``: writes the figures of inputs, for ``validation { skew { … } }``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers
from tfs.cli.calling.replay import LoggedRequests
from tfs.cli.calling.warmup import release
from tfs.core.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from tfs.server.input_skew import LiveInputs

_EPILOG = """\
examples
  tfs statistics train.npz --output /models/digits/3/statistics.json
  tfs statistics /logs/digits-*.tfrecord --output /etc/tfs/digits.json

The array x of an .npz file is the input x; of a request log, requests of Predict count. Name
the file as statistics in skew, or have it in the directory of a version.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "statistics",
        help="what inputs look like, for validation",
        description="Writes the figures of inputs, with which a server compares those of "
        "live requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=".npz, or request logs"
    )
    parser.add_argument(
        "--output",
        default="statistics.json",
        metavar="FILE",
        help="where to write them (default statistics.json)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from tfs.codec.predict_request import read_predict_request
    from tfs.core.version.input_statistics import describe, to_json
    from tfs.server.input_skew import LiveInputs

    inputs = LiveInputs()
    arrays = [each for each in arguments.files if each.endswith(".npz")]
    for path in arrays:
        _add_arrays(inputs, path)
    for _, entry in LoggedRequests([e for e in arguments.files if e not in arrays]):
        if entry.WhichOneof("log_type") == "predict_log":
            request = entry.predict_log.request.SerializeToString()
            inputs.add(read_predict_request(request).inputs)
    found = {name: each for name, each in inputs.values().items() if each}
    if not found:
        raise InvalidArgument("no values: neither arrays nor requests of Predict")
    text = to_json({name: describe(each) for name, each in found.items()})
    output = Path(arguments.output)
    release(str(output.parent), output.name)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(f"{arguments.output}: {error.strerror}") from error
    print(f"figures of {', '.join(sorted(found))} in {arguments.output}")
    return 0


def _add_arrays(inputs: LiveInputs, path: str) -> None:
    import numpy as np

    try:
        with np.load(path) as arrays:
            inputs.extend({name: arrays[name].ravel().tolist() for name in arrays})
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: {error}") from error
