"""``tfs tune``: measures a version's time per batch size and recommends parameters."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers, count, seconds
from tfs.cli.connection import add_admin_arguments, ask
from tfs.core.errors import (
    FailedPrecondition,
    NotFound,
    Unavailable,
)
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.version_directory import BATCHING_PARAMETERS, is_committed, read_manifest

if TYPE_CHECKING:
    from tfs.core.servable import Servable
    from tfs.servables.measuring.tuning import RecommendedParameters, Tuning

_EPILOG = """\
MODEL is a version directory, a model's directory, whose highest version is taken, or the
name of a model that a server on this machine serves: its primary version, on the device
it runs on there.

examples
  tfs tune /models/resnet > params.pbtxt     and: tfs serve --batching_parameters_file
  tfs tune /models/resnet --out tuned/       batching_params.pbtxt
  tfs tune resnet --socket /run/tfs.sock     what that server answers with now

The parameters belong to the machine they were measured on: run it on a quiet one of the
kind that serves.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "tune",
        help="measure batches of a model and recommend batching parameters",
        description="Runs a version on batches of many sizes, shows how long they "
        "take, and recommends batching parameters.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a directory or name, see below")
    parser.add_argument(
        "--signature",
        default=DEFAULT_SIGNATURE,
        metavar="KEY",
        help=f"what to measure; default: {DEFAULT_SIGNATURE}",
    )
    parser.add_argument(
        "--max_batch_size", type=count, default=64, help="largest batch; default: 64"
    )
    parser.add_argument(
        "--budget_s", type=seconds, default=10.0, help="seconds to measure; default: 10"
    )
    parser.add_argument(
        "--device", help='"cpu" or "cuda[:i]"; default: the server\'s, else cpu'
    )
    parser.add_argument(
        "--intra_op_threads",
        type=count,
        default=1,
        help="threads of a call; default: 1",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help=f"write {BATCHING_PARAMETERS} there; default: print the parameters",
    )
    add_admin_arguments(parser, prints_reply=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit status.

    Raises:
        ServingError: The version cannot be found, measured or batched.

    """
    from tfs.servables.measuring.probe_subject import ProbeSubject
    from tfs.servables.measuring.tuning import (
        TuningOptions,
        recommended_parameters,
        tune,
    )

    path, device = version_of(args)
    out: str | None = args.out
    if out is not None:
        check_writable(out)
    options = TuningOptions(args.max_batch_size, args.budget_s)
    with loaded(path, device, args.intra_op_threads) as servable:
        tuning = tune(ProbeSubject(servable), path, args.signature, options)
    where = f"{device}, threads per call: {args.intra_op_threads}"
    recommended = recommended_parameters(tuning.call_s_by_rows)
    text = parameters_text(tuning, recommended, where)
    if tuning.doubt:
        print(
            "tfs tune: the server batches a signature only where rows were shown to be "
            f"independent; here {tuning.doubt}",
            file=sys.stderr,
        )
    if 1 < recommended.batch_rows == args.max_batch_size:
        print(
            "tfs tune: the largest batch was the best; a larger --max_batch_size may be "
            "better still",
            file=sys.stderr,
        )
    if out is None:
        print(text, end="")
        return 0
    file = Path(out, BATCHING_PARAMETERS)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(file)
    return 0


def version_of(args: argparse.Namespace) -> tuple[str, str]:
    """Returns the version directory to measure, and the device to measure on.

    A name that is a directory, or looks like a path, is a path. Any other is a model
    that a server serves.

    Raises:
        ServingError: There is no such directory, or no server that serves the model.

    """
    model: str = args.model
    if os.path.isdir(model) or os.sep in model:
        return version_path(model), args.device or "cpu"
    path, device = served_version(args, model)
    return path, args.device or device


def served_version(args: argparse.Namespace, model: str) -> tuple[str, str]:
    """Returns the directory of a served model's primary version, and its device.

    Raises:
        ServingError: No server was reached, or it serves no version of the model from
            a directory of this machine.

    """
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ListModelsRequest(models=[model])
    try:
        reply = ask(args, "ListModels", request, pb.ListModelsResponse)
    except Unavailable as error:
        raise NotFound(
            f"no such directory: {model}; and for a model of that name: {error.message}"
        ) from error
    (report,) = reply.models
    if not report.HasField("primary"):
        raise FailedPrecondition(f"no version of {model} answers requests now")
    (version,) = (each for each in report.versions if each.version == report.primary)
    if not os.path.isdir(version.path):
        raise FailedPrecondition(
            f"{model}/{report.primary} lies in {version.path or report.base_path}, "
            "which is no directory of this machine; tune it where it is served"
        )
    return version.path, version.placement.device or "cpu"


def version_path(path: str) -> str:
    """Returns the version directory that ``path`` names: itself, or its highest.

    Raises:
        NotFound: There is no such directory.

    """
    if not os.path.isdir(path):
        raise NotFound(f"no such directory: {path}")
    if not is_committed(path):
        versions = [name for name in os.listdir(path) if name.isdecimal()]
        if versions:
            return os.path.join(path, max(versions, key=int))
    return path


def check_writable(folder: str) -> None:
    """Checks that writing parameters into a folder changes no committed version.

    Raises:
        FailedPrecondition: Its parameters are among the files of a committed version.

    """
    if is_committed(folder) and BATCHING_PARAMETERS in read_manifest(folder).files:
        raise FailedPrecondition(
            f"{folder} was published with its own {BATCHING_PARAMETERS}, and its "
            "manifest promises it unchanged; write elsewhere, and publish again with "
            "`tfs package`"
        )


@contextlib.contextmanager
def loaded(path: str, device: str, intra_op_threads: int) -> Iterator[Servable]:
    """Loads a version into this process, for as long as the context lasts.

    Raises:
        ServingError: It does not load.

    """
    from tfs.runtime.inline.inline_interpreter import InlineInterpreter
    from tfs.servables.platform import LoadContext
    from tfs.servables.registry import default_registry

    interpreter = InlineInterpreter("tune")
    context = LoadContext(lambda _: interpreter, device, intra_op_threads)
    path = os.path.abspath(path)
    name = os.path.basename(path)
    version = int(name) if name.isdecimal() else 1
    try:
        loader = default_registry().loader(path, context)
        loader.load(
            ServableId(os.path.basename(os.path.dirname(path)) or "model", version)
        )
        try:
            yield loader.servable
        finally:
            loader.unload()
    finally:
        interpreter.close()


def parameters_text(
    tuning: Tuning, recommended: RecommendedParameters, where: str
) -> str:
    """Returns a ``BatchingParameters`` file with the measurements as comments."""
    inputs = "example inputs" if tuning.is_example else "made-up inputs"
    lines = [
        f"# Measured by tfs tune: signature {tuning.signature_name}, {inputs}, {where};",
        f"# medians of {tuning.num_rounds} calls. For machines like this one.",
        "#",
        "#   rows   ms per batch       rows/s",
    ]
    for rows, call_s in sorted(tuning.call_s_by_rows.items()):
        mark = "  <- best" if rows == recommended.batch_rows else ""
        rate = rows / max(call_s, 1e-12)
        lines.append(f"# {rows:6d} {call_s * 1e3:14.3f} {rate:12.1f}{mark}")
    return "\n".join(lines) + "\n\n" + recommended.text
