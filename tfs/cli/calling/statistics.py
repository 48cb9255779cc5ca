"""``tfs statistics``: writes the figures of inputs, for ``validation { skew { … } }``."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers
from tfs.cli.calling.replay import LoggedRequests
from tfs.cli.calling.warmup import release
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.system.replaced_file import replace_file

if TYPE_CHECKING:
    from tfs.core.version.input_statistics import Value

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
    from tfs.core.version.input_statistics import describe, to_json

    arrays = [each for each in arguments.files if each.endswith(".npz")]
    found = _logged([each for each in arguments.files if each not in arrays])
    for path in arrays:
        for name, values in _arrays(path):
            found.setdefault(name, []).extend(values)
    found = {name: each for name, each in found.items() if each}
    if not found:
        raise InvalidArgument("no values: neither arrays nor requests of Predict")
    text = to_json({name: describe(each) for name, each in found.items()})
    output = Path(arguments.output)
    release(str(output.parent), output.name)
    try:
        replace_file(str(output), text)
    except OSError as error:
        raise FailedPrecondition(f"{arguments.output}: {error.strerror}") from error
    print(f"figures of {', '.join(sorted(found))} in {arguments.output}")
    return 0


def _arrays(path: str) -> list[tuple[str, list[Value]]]:
    """Returns all values of each array of numbers or strings."""
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    found: list[tuple[str, list[Value]]] = []
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            for name in arrays:
                array = arrays[name]
                if array.dtype.kind == "S":
                    array = np.char.decode(array, "utf-8", "replace")
                if array.dtype.kind in "biufU":
                    found.append((name, array.ravel().tolist()))
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"{path}: {error}") from error
    return found


def _logged(paths: Sequence[str]) -> dict[str, list[Value]]:
    """Returns a sample of the values of each input, from anywhere in the logs."""
    from tfs.codec.predict_request import read_predict_request
    from tfs.server.input_skew import LiveInputs

    pick = LiveInputs(max_per_tensor=sys.maxsize).pick
    samples: dict[str, Sample] = {}
    for _, entry in LoggedRequests(paths):
        if entry.WhichOneof("log_type") == "predict_log":
            request = entry.predict_log.request.SerializeToString()
            for name, values in pick(read_predict_request(request).inputs).items():
                samples.setdefault(name, Sample()).extend(values)
    return {name: each.kept for name, each in samples.items()}


class Sample:
    """Some of the values that are added, each as likely as any other. For one thread.

    Attributes:
        kept: The sample; all of them, while they are at most ``max_values``.

    """

    def __init__(self, max_values: int = 100_000) -> None:
        self.kept: list[Value] = []
        self._max_values = max_values
        self._share = 1.0
        self._draw = random.Random(0)

    def extend(self, values: Sequence[Value]) -> None:
        """Adds values."""
        self.kept += self._some(values, self._share)
        while len(self.kept) > self._max_values:
            self.kept = self._some(self.kept, 0.5)
            self._share /= 2

    def _some(self, values: Sequence[Value], share: float) -> list[Value]:
        draw = self._draw.random
        return [each for each in values if share == 1.0 or draw() < share]
