"""Clients that share no code with ours: each sets itself up, and checks a server.

`run.py` serves a small model through each transport and lets every peer in the table
at it. A peer that cannot be set up fails, and names the tool that is missing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import h2load
from tests.benchmarks.command import run_command
from tests.clients.table import Case, WrongReplyError
from tfs.core.errors import Code
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

HERE: Final = Path(__file__).resolve().parent
TOOLS: Final = h2load.TOOLS
PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
WATCH: Final = "/grpc.health.v1.Health/Watch"
TIMEOUT_S: Final = 120
SETUP_TIMEOUT_S: Final = 600
TOLERANCE: Final = 1e-5
PREFIX_BYTES: Final = 5
CURL_STREAM_ERROR: Final = 92
MAX_UNSEEN: Final = 5


class Failed(RuntimeError):
    """A step failed, as a command does; the message is for people."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens, and what it must answer.

    Attributes:
        address: Of gRPC.
        expected: What run.py exported: names, inputs, outputs by version.
        http: Where its HTTP port is; empty if that is not known.

    """

    address: str
    expected: Mapping[str, Any]
    http: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A client. Its functions raise RuntimeError; the last two say what they did.

    Attributes:
        set_up: Installs what it needs.
        check: Does with the server of run.py's model what such clients do.
        check_table: Makes the calls of the conformance table at an address; None if it
            speaks another protocol.

    """

    name: str
    set_up: Callable[[], None]
    check: Callable[[Server], str]
    check_table: Callable[[str, Sequence[Case]], str] | None


def find_tool(name: str, package: str) -> str:
    """Returns a program's path.

    Raises:
        Failed: It is not installed; says what would install it.

    """
    found = shutil.which(name)
    if found is None:
        raise Failed(f"{name} is missing: install it, for example Debian's {package}")
    return found


def judge(
    cases: Sequence[Case], outcomes: Sequence[tuple[int, str | None, bytes]]
) -> str:
    """Compares code, details and reply of each call with the table.

    Raises:
        Failed: Some differ; names them all.

    """
    wrong = []
    for case, (code, details, reply) in zip(cases, outcomes, strict=True):
        try:
            case.judge(code, details, reply)
        except WrongReplyError as error:
            wrong.append(str(error))
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{len(cases)} calls as the table says"


# -- requests ------------------------------------------------------------------------


def predict_request(server: Server, model: str | None = None) -> bytes:
    """Returns a Predict of the inputs that the expected outputs belong to."""
    inputs = server.expected["inputs"]
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model or server.expected["model"]
    tensor = request.inputs["input"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (len(inputs), len(inputs[0])):
        tensor.tensor_shape.dim.add(size=size)
    flat = [value for row in inputs for value in row]
    tensor.tensor_content = struct.pack(f"<{len(flat)}f", *flat)
    return request.SerializeToString()


def check_reply(server: Server, reply: bytes) -> None:
    """The outputs are torch's, of the version that the reply names.

    Raises:
        Failed: They are not.

    """
    response = predict_pb2.PredictResponse.FromString(reply)
    version = str(response.model_spec.version.value)
    rows = server.expected["outputs"].get(version)
    if rows is None:
        raise Failed(f"the reply names version {version}")
    expected = [value for row in rows for value in row]
    got = response.outputs["scores"].float_val
    if len(got) != len(expected) or any(
        abs(one - other) > TOLERANCE for one, other in zip(got, expected, strict=True)
    ):
        raise Failed(f"wrong scores for version {version}: {list(got)[:6]}")


# -- @grpc/grpc-js -------------------------------------------------------------------


def set_up_grpc_js() -> None:
    """Installs what package-lock.json pins into .tools/grpc-js, once."""
    find_tool("node", "nodejs")
    npm = find_tool("npm", "npm")
    folder = TOOLS / "grpc-js"
    sources = [
        HERE / "grpc_js" / name for name in ("package.json", "package-lock.json")
    ]
    stamp = folder / ".lock"
    wanted = hashlib.sha256(sources[1].read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copy(source, folder)
    # Their scripts only tell of themselves.
    # npm takes a linked folder for a package of its own.
    prefix = str(folder.resolve())
    install = [npm, "ci", "--prefix", prefix, "--ignore-scripts", "--no-audit"]
    run_command([*install, "--no-fund"], timeout_s=SETUP_TIMEOUT_S)
    stamp.write_text(wanted)


def check_grpc_js(server: Server) -> str:
    """Right replies, many at once, errors, a deadline and a stream."""
    good = predict_request(server)
    watched = health_pb2.HealthCheckRequest().SerializeToString()
    calls: list[tuple[str, bytes, Code]] = [
        *[(PREDICT, good, Code.OK)] * 200,
        (PREDICT, predict_request(server, "absent"), Code.NOT_FOUND),
        (PREDICT + "ed", good, Code.UNIMPLEMENTED),
        (PREDICT, b"\xff" * 40, Code.INVALID_ARGUMENT),
        (WATCH, watched, Code.CANCELLED),
    ]
    outcomes = ask_grpc_js(server.address, [(path, sent) for path, sent, _ in calls])
    for (path, _, code), outcome in zip(calls, outcomes, strict=True):
        if outcome["code"] != int(code):
            raise Failed(f"{path}: {outcome}, not {code.name}")
        if code is Code.OK:
            check_reply(server, base64.b64decode(outcome["reply"]))
    first = base64.b64decode(outcomes[-1]["reply"])
    if not health_pb2.HealthCheckResponse.FromString(first).status:
        raise Failed("Watch streamed no status")
    return f"{len(calls)} calls at once, {len(calls) - 200} of them errors or streams"


def ask_grpc_js(address: str, calls: Sequence[tuple[str, bytes]]) -> list[Any]:
    """Makes all calls at once; returns code, details and reply of each."""
    asked = [
        {
            "path": path,
            "message": base64.b64encode(message).decode(),
            "timeout_ms": TIMEOUT_S * 500,
            "is_stream": path == WATCH,
        }
        for path, message in calls
    ]
    script = TOOLS / "grpc-js" / "client.js"
    shutil.copy(HERE / "grpc_js" / "client.js", script)
    command = [find_tool("node", "nodejs"), str(script), address]
    outcomes: list[Any] = json.loads(
        run_command(command, timeout_s=TIMEOUT_S, stdin=json.dumps(asked))
    )
    return outcomes


def table_by_grpc_js(address: str, cases: Sequence[Case]) -> str:
    """All of the table at once."""
    outcomes = ask_grpc_js(address, [(case.path, case.message) for case in cases])
    return judge(
        cases,
        [
            (each["code"], each["details"], base64.b64decode(each["reply"] or ""))
            for each in outcomes
        ],
    )


# -- curl ----------------------------------------------------------------------------


def set_up_curl() -> None:
    """Needs a curl that speaks HTTP/2."""
    version = run_command([find_tool("curl", "curl"), "--version"], timeout_s=TIMEOUT_S)
    if "HTTP2" not in version:
        raise Failed("this curl has no HTTP2: install one that has, as Debian's curl")


def check_curl(server: Server) -> str:
    """A right reply, an error in the trailers, and an answer to what is not gRPC."""
    with tempfile.TemporaryDirectory() as folder:
        body, headers = post(server.address, predict_request(server), Path(folder))
        if headers.get("grpc-status") != "0":
            raise Failed(f"grpc-status is not 0: {headers}")
        if struct.unpack(">?I", body[:PREFIX_BYTES]) != (False, len(body) - 5):
            raise Failed(f"not one message: {body[:20]!r}")
        check_reply(server, body[PREFIX_BYTES:])
        absent = predict_request(server, "absent")
        _, headers = post(server.address, absent, Path(folder))
        if headers.get("grpc-status") != str(int(Code.NOT_FOUND)):
            raise Failed(f"grpc-status is not NOT_FOUND: {headers}")
    # What is not gRPC: express says so, grpcio's core resets the stream.
    get = [find_tool("curl", "curl"), "--silent", "--http2-prior-knowledge"]
    get += ["--max-time", "20", "--output", "/dev/null", "--write-out", "%{http_code}"]
    result = subprocess.run(
        [*get, f"http://{server.address}/"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    is_reset = result.returncode == CURL_STREAM_ERROR
    if not is_reset and not result.stdout.startswith("4"):
        raise Failed(f"a GET ended with {result.returncode}, HTTP {result.stdout}")
    how = "a reset" if is_reset else result.stdout
    return f"a reply, an error; a GET is answered with {how}"


def post(
    address: str, message: bytes, folder: Path, path: str = PREDICT
) -> tuple[bytes, dict[str, str]]:
    """Posts one message; returns the body, and headers and trailers by name."""
    sent, got, headers = folder / "sent", folder / "got", folder / "headers"
    sent.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    got.write_bytes(b"")
    headers.write_bytes(b"")
    run_command(
        [
            *(find_tool("curl", "curl"), "--silent", "--show-error"),
            *("--http2-prior-knowledge", "--max-time", "20"),
            *("--header", "content-type: application/grpc", "--header", "te: trailers"),
            *("--data-binary", f"@{sent}", "--output", str(got)),
            *("--dump-header", str(headers), f"http://{address}{path}"),
        ],
        timeout_s=TIMEOUT_S,
        # An answer before the whole request was sent ends with a reset of the stream,
        # as gRPC wants; curl takes the answer and complains.
        good_codes=(0, CURL_STREAM_ERROR),
    )
    pairs = re.findall(r"^([\w-]+): (.*?)\r?$", headers.read_text(), re.MULTILINE)
    return got.read_bytes(), dict(pairs)


def table_by_curl(address: str, cases: Sequence[Case]) -> str:
    """The table, a connection a call.

    Where a reset follows an error at once, curl may drop the error with the stream:
    then it has seen nothing that could be wrong.
    """
    outcomes: list[tuple[int, str | None, bytes]] = []
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            body, headers = post(address, case.message, Path(folder), case.path)
            if "grpc-status" not in headers and case.code is not Code.OK:
                continue
            details = urllib.parse.unquote(headers.get("grpc-message", ""))
            code = int(headers.get("grpc-status", "-1"))
            seen.append(case)
            outcomes.append((code, details, body[PREFIX_BYTES:]))
    if len(seen) < len(cases) - MAX_UNSEEN:
        raise Failed(f"{len(cases) - len(seen)} calls ended without a status")
    return judge(seen, outcomes)


# -- h2load --------------------------------------------------------------------------


def set_up_h2load() -> None:
    """Unpacks it into .tools/h2load where it is not installed."""
    try:
        h2load.find()
    except h2load.H2loadMissingError as error:
        raise Failed(str(error)) from error


def check_h2load(server: Server) -> str:
    """Thousands of requests on one connection, every reply as long as the right one."""
    message = predict_request(server)
    with tempfile.TemporaryDirectory() as folder:
        body, _ = post(server.address, message, Path(folder))
    check_reply(server, body[PREFIX_BYTES:])
    load = h2load.run(
        h2load.find(),
        server.address,
        PREDICT,
        message,
        num_requests=5000,
        num_in_flight=32,
    )
    try:
        load.check(len(body) - PREFIX_BYTES)
    except ValueError as error:
        raise Failed(str(error)) from error
    return f"{load.num_done} requests, 32 in flight, {load.num_data_bytes} bytes"


def table_by_h2load(address: str, cases: Sequence[Case]) -> str:
    """What the table answers with OK, ten of each; it sees only how long replies are."""
    good = [case for case in cases if case.code is Code.OK]
    tool = h2load.find()
    for case in good:
        with tempfile.TemporaryDirectory() as folder:
            body, _ = post(address, case.message, Path(folder), case.path)
        try:
            h2load.run(
                tool, address, case.path, case.message, num_requests=10, num_in_flight=5
            ).check(len(body) - PREFIX_BYTES)
        except ValueError as error:
            raise Failed(f"{case.name}: {error}") from error
    return f"{10 * len(good)} calls with as many bytes as the right replies"


PEERS: Final = (
    Peer("@grpc/grpc-js", set_up_grpc_js, check_grpc_js, table_by_grpc_js),
    Peer("curl", set_up_curl, check_curl, table_by_curl),
    Peer("h2load", set_up_h2load, check_h2load, table_by_h2load),
)
