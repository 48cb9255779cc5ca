"""``tfs warmup record``: writes the requests that a version is warmed up with."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfs.cli.argument_range import Subparsers
from tfs.cli.calling.inputs import HELP, read_inputs, read_json
from tfs.cli.calling.replay import LoggedRequests, num_records
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature
from tfs.core.system.replaced_file import replace_file
from tfs.core.version.manifest import MANIFEST, read_signatures
from tfs.core.version_directory import (
    SIGNATURES,
    WARMUP_REQUESTS,
    is_committed,
    read_manifest,
)

if TYPE_CHECKING:
    from tfs.core.tensor_view import TensorView
    from tfs.proto.tensorflow_serving.apis import prediction_log_pb2

_EPILOG = """\
examples
  tfs warmup record /models/digits/3 --input images=images.npy
  tfs warmup record /models/digits/3 --signature classify --examples examples.json
  tfs warmup record /models/digits/3 --from_log /logs/digits-*.tfrecord

examples.json is a list of objects, one per Example: [{"x": [0.5, 1.5]}, ...].
A server that has the version loaded notices, and loads it again.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("warmup", help="what a version is warmed up with")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    record = actions.add_parser(
        "record",
        help="write a version's warm-up requests",
        description="Writes assets.extra/tf_serving_warmup_requests, which a server "
        "replays before it makes the version available.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument("version_dir", metavar="VERSION_DIR", help="the version")
    record.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help=HELP
    )
    record.add_argument("--examples", metavar="FILE.json", help="of classify, regress")
    record.add_argument(
        "--signature", default=DEFAULT_SIGNATURE, help="other than the default one"
    )
    record.add_argument(
        "--from_log", nargs="+", default=[], metavar="FILE", help="request logs"
    )
    record.add_argument(
        "--max_records", type=num_records, default=100, help="of the logs (default 100)"
    )
    record.add_argument(
        "--append", action="store_true", help="keep the requests that are there"
    )
    record.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from tfs.handlers.warmup_replay import MAX_RECORDS, read_warmup_requests

    path = arguments.version_dir
    signatures = _signatures(path)
    entries: list[prediction_log_pb2.PredictionLog] = []
    if arguments.append:
        entries += read_warmup_requests(path)
    entries += itertools.islice(
        _from_logs(arguments.from_log, signatures), arguments.max_records
    )
    if arguments.input or arguments.examples:
        entries.append(_from_examples(arguments, signatures))
        _check(entries[-1], signatures)
    if not entries:
        raise InvalidArgument("nothing to record: give --input, --examples or logs")
    if len(entries) > MAX_RECORDS:
        raise InvalidArgument(
            f"{len(entries)} requests; a server replays {MAX_RECORDS} at most"
        )
    release(path, WARMUP_REQUESTS)
    _write(Path(path, WARMUP_REQUESTS), entries)
    what = "request" if len(entries) == 1 else "requests"
    print(f"{len(entries)} {what} in {os.path.join(path, WARMUP_REQUESTS)}")
    return 0


def _signatures(path: str) -> Mapping[str, Signature]:
    if is_committed(path):
        return read_manifest(path).signatures
    by_hand = Path(path, SIGNATURES)
    if by_hand.is_file():
        return read_signatures(
            read_json(by_hand.read_text(encoding="utf-8"), str(by_hand)), str(by_hand)
        )
    from tfs.servables.registry import signatures_of

    signatures = signatures_of(path)
    if signatures is None:
        raise FailedPrecondition(
            f"{path} is no version directory: no {MANIFEST}, no {SIGNATURES}, and "
            "nothing that tells its signatures itself"
        )
    return signatures


def _check(
    entry: prediction_log_pb2.PredictionLog, signatures: Mapping[str, Signature]
) -> None:
    """Checks a request as the version will: a wrong one would prevent its load.

    Requests for several signatures at once, and entries that are no requests, are not
    checked.
    """
    from tfs.codec.example import tensors_of_examples
    from tfs.codec.example_input import read_example_request
    from tfs.codec.predict_request import read_predict_request

    kind = entry.WhichOneof("log_type")
    inputs: Mapping[str, TensorView]
    if kind == "predict_log":
        predict = entry.predict_log.request
        signature = _signature(predict.model_spec.signature_name, signatures)
        inputs = read_predict_request(predict.SerializeToString()).inputs
    elif kind in ("classify_log", "regress_log"):
        request = getattr(entry, kind).request
        signature = _signature(request.model_spec.signature_name, signatures)
        rows = read_example_request(request.SerializeToString())
        inputs = tensors_of_examples(rows.input, signature)
    else:
        return
    signature.check_inputs(signature.with_defaults(inputs))


def _signature(asked: str, signatures: Mapping[str, Signature]) -> Signature:
    key = asked or DEFAULT_SIGNATURE
    signature = signatures.get(key)
    if signature is None:
        raise InvalidArgument(
            f"no signature {key!r}; the version has {', '.join(sorted(signatures))}"
        )
    return signature


def _from_logs(
    files: list[str], signatures: Mapping[str, Signature]
) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the logs' requests, each different one once, without the answers."""
    seen: set[bytes] = set()
    for where, entry in LoggedRequests(files):
        kind = entry.WhichOneof("log_type")
        if kind is None:
            continue
        getattr(entry, kind).ClearField("response")
        entry.ClearField("log_metadata")
        form = entry.SerializeToString(deterministic=True)
        if form not in seen:
            seen.add(form)
            try:
                _check(entry, signatures)
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {error.message}") from error
            yield entry


def _from_examples(
    arguments: argparse.Namespace, signatures: Mapping[str, Signature]
) -> prediction_log_pb2.PredictionLog:
    from tfs.client import requests
    from tfs.proto.tensorflow_serving.apis import prediction_log_pb2

    key = arguments.signature
    signature = _signature(key, signatures)
    target = requests.Target("warm-up", signature=key)
    entry = prediction_log_pb2.PredictionLog()
    if arguments.examples:
        rows = _rows(arguments.examples)
        if signature.method is Method.REGRESS:
            entry.regress_log.request.ParseFromString(
                requests.regress(target, rows).message
            )
        elif signature.method is Method.CLASSIFY:
            entry.classify_log.request.ParseFromString(
                requests.classify(target, rows).message
            )
        else:
            raise InvalidArgument(
                f"signature {key!r} takes tensors: give --input, not --examples"
            )
        return entry
    dtypes = {name: spec.dtype.name for name, spec in signature.inputs.items()}
    inputs = read_inputs(arguments.input, dtypes)
    unknown = sorted(inputs.keys() - signature.inputs.keys())
    if unknown:
        raise InvalidArgument(
            f"signature {key!r} has no input {', '.join(unknown)}; it has "
            f"{', '.join(signature.inputs)}"
        )
    entry.predict_log.request.ParseFromString(requests.predict(target, inputs).message)
    return entry


def _rows(path: str) -> list[dict[str, object]]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgument(
            f"--examples {path}: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"--examples {path}: {error}") from error
    rows = read_json(text, f"--examples {path}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidArgument(f"--examples {path}: expected a list of objects")
    return rows


def release(path: str, name: str) -> None:
    """Removes a file from the manifest, if there is one that has it.

    Otherwise a server that looked between the two writes would find a digest that does
    not match, and refuse the version.
    """
    if not is_committed(path):
        return
    manifest = read_manifest(path)
    if name in manifest.files:
        files = {each: f for each, f in manifest.files.items() if each != name}
        _replace(
            Path(path, MANIFEST), replace(manifest, files=files).to_json().encode()
        )


def _write(path: Path, entries: list[prediction_log_pb2.PredictionLog]) -> None:
    from tfs.codec.tfrecord import frame

    path.parent.mkdir(exist_ok=True)
    _replace(path, b"".join(frame(entry.SerializeToString()) for entry in entries))


def _replace(path: Path, content: bytes) -> None:
    try:
        replace_file(str(path), content)
    except OSError as error:
        raise FailedPrecondition(f"cannot write {path}: {error.strerror}") from error
