"""``tfs predict``: asks a server for one prediction."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import Subparsers, seconds, version_number
from tfs.cli.calling.inputs import HELP, jsonable, read_inputs
from tfs.cli.calling.over_http import DEFAULT_HTTP_ADDRESS, FORMS, HttpModels
from tfs.cli.connection import add_connection_arguments, connect
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import NotFound, ServingError, Unavailable

if TYPE_CHECKING:
    from tfs.client import Client, Prediction

_PAUSE_S: Final = 0.2  # between two questions whether a model is served

_EPILOG = """\
examples
  tfs predict digits --input images=images.npy
  tfs predict scale --input 'x=[[1, 2], [3, 4]]' --version 2 --json
  tfs predict digits --input images=images.npy --label stable --output scores
  tfs predict cats --input image=@cat.jpg --wait 60
  tfs predict digits --http npy --input images=images.npy
  tfs predict texts --input '{"text": ["a b", {"b64": "/w=="}], "limit": [[3], [4]]}'
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "predict",
        help="ask a server for a prediction",
        description="Asks a server for one prediction; prints the outputs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="its name on the server")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help=HELP
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=version_number, help="ask this version")
    which.add_argument("--label", help="ask the version this label means")
    parser.add_argument("--signature", default="", help="other than the default one")
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="show only this output",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--wait",
        nargs="?",
        type=seconds,
        const=60.0,
        default=0.0,
        metavar="S",
        help="wait so long until the model is served (alone: 60)",
    )
    parser.add_argument(
        "--http",
        nargs="?",
        choices=FORMS,
        const="protobuf",
        help="send it to the REST port (--address, by default "
        f"{DEFAULT_HTTP_ADDRESS}) in this form (alone: protobuf)",
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    with (
        contextlib.nullcontext(HttpModels(arguments))
        if arguments.http
        else connect(arguments)
    ) as client:
        if arguments.wait:
            wait_until_served(client, arguments, MonotonicClock())
        dtypes = _dtypes(client, arguments)
        answer = client.predict(
            arguments.model,
            read_inputs(arguments.input, dtypes),
            version=arguments.version,
            label=arguments.label,
            signature=arguments.signature,
            outputs=arguments.output,
        )
    print(_as_json(answer) if arguments.json else _as_text(answer))
    return 0


def wait_until_served(
    client: Client | HttpModels, arguments: argparse.Namespace, clock: Clock
) -> None:
    """Blocks until the server describes the model that is asked for.

    Raises:
        NotFound: It is not served in time, as the server said last.
        Unavailable: No server answers in time.

    """
    end_s = clock.now() + arguments.wait
    pause = threading.Condition()
    while True:
        due_s = min(end_s, clock.now() + _PAUSE_S)
        try:
            client.metadata(
                arguments.model, version=arguments.version, label=arguments.label
            )
        except (NotFound, Unavailable):
            if clock.now() >= end_s:
                raise
            with pause:
                clock.wait(pause, due_s)
        else:
            return


def _dtypes(
    client: Client | HttpModels, arguments: argparse.Namespace
) -> Mapping[str, str]:
    """Returns the dtypes that the inputs should have, as far as the server tells."""
    try:
        found = client.metadata(
            arguments.model, version=arguments.version, label=arguments.label
        )
    except ServingError:
        return {}  # the prediction itself will give the better error
    signature = found.signatures.get(arguments.signature or "serving_default")
    if signature is None:
        return {}
    return {name: info.dtype for name, info in signature.inputs.items()}


def _as_json(answer: Prediction) -> str:
    return json.dumps(
        {
            "model": answer.model,
            "version": answer.version,
            "signature": answer.signature,
            "outputs": {
                name: jsonable(each) for name, each in sorted(answer.outputs.items())
            },
        }
    )


def _as_text(answer: Prediction) -> str:
    lines = [f"{answer.model}/{answer.version} {answer.signature}"]
    for name, array in sorted(answer.outputs.items()):  # messages keep no order
        dtype = "string" if array.dtype.kind == "O" else str(array.dtype)
        lines += [f"{name}: {dtype} {list(array.shape)}", str(array)]
    return "\n".join(lines)
