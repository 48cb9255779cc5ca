"""Checks TFS with clients that are not ours, each with what it needs set up by itself.

    make test-clients
    python tests/clients/run.py [--peers NAME,...] [--address HOST:PORT --model_dir DIR]

Exports two versions of a small model, serves them through each transport in turn, and
lets every peer call the server:

- tensorflow-serving-api, the pip package: makes .venv-clients with what requirements.txt
  lists (about 280 MB to download, once), imports the real packages and our messages in
  one process, in both orders, and passes bytes both ways; then status, Predict,
  Classify, a reload to the older version and back, through the real stubs;
- the peers of peers.py: @grpc/grpc-js from npm, curl, h2load;
- schemathesis, which fuzzes what /openapi.json describes, in an environment of its own;
- tritonclient and KServe's client, which speak the Open Inference Protocol over gRPC and
  HTTP, each in a .venv-clients-… of its own with what oip/*.txt lists.

Then each that speaks TensorFlow Serving's API makes every call of the conformance table, table.py, as far as it can see
how they end.

Prints each result as it comes and all of them at the end; exits non-zero if any failed.

Runs under the project's own environment, which exports and serves. To check a server
that is running already, export with --export_only --model_dir=DIR, serve DIR/model as
"small" with the config DIR/models.config, and give its --address and --http.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, before the imports below

from tests.clients import table  # noqa: E402
from tests.clients.peers import PEERS, Failed, Peer, Server, judge  # noqa: E402
from tests.clients.table import Case  # noqa: E402
from tests.e2e.serving import free_port  # noqa: E402

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
VENV = ROOT / ".venv-clients"

MODEL = "small"
VERSIONS = (1, 2)
LABELS = ("low", "middle", "high")

INSTALL_TIMEOUT_S = 1800
CLIENT_TIMEOUT_S = 300
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
TRANSPORTS = ("grpcio", "express")


def make_environment(venv: Path, requirements: Path = REQUIREMENTS) -> Path:
    """Makes a clients' environment where it is missing or outdated.

    Returns:
        Its Python.

    """
    python = venv / "bin" / "python"
    stamp = venv / ".requirements"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"==> making {venv}", flush=True)
    call([sys.executable, "-m", "venv", "--clear", str(venv)], INSTALL_TIMEOUT_S)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install += ["install", "--no-deps", "-r", str(requirements)]
    call(install, INSTALL_TIMEOUT_S)
    stamp.write_text(wanted)
    return python


def call(command: list[str], timeout_s: float) -> None:
    """Runs a command, its output shown.

    Raises:
        Failed: It failed, or took too long.

    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        # TensorFlow's start-up messages hide ours.
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    name = " ".join(command[:4])
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=timeout_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} … took more than {timeout_s} s") from None
    if code != 0:
        raise Failed(f"{name} … exited with {code}")


def export(model_dir: Path) -> None:
    """Writes two versions, a server config, and what the server must answer.

    expected.json: per version, outputs for the inputs beside them, as torch gave them.
    """
    import torch
    from torch import nn

    import tfs.export

    base_path = model_dir / "model"
    inputs = torch.linspace(-1.0, 1.0, 20).reshape(5, 4)
    outputs: dict[str, list[list[float]]] = {}
    for version in VERSIONS:
        torch.manual_seed(version)
        model = nn.Sequential(nn.Linear(4, len(LABELS)), nn.Softmax(dim=1)).eval()
        tfs.export.save(
            model,
            {"input": inputs},
            base_path,
            version,
            output_names=["scores"],
            signatures={
                "classify": tfs.export.Signature(
                    {"input": inputs}, method="classify", labels=LABELS
                )
            },
        )
        with torch.no_grad():
            outputs[str(version)] = model(inputs).tolist()
    expected = {
        "model": MODEL,
        "base_path": str(base_path),
        "labels": LABELS,
        "inputs": inputs.tolist(),
        "outputs": outputs,
    }
    (model_dir / "expected.json").write_text(json.dumps(expected, indent=1))
    (model_dir / "models.config").write_text(
        "model_config_list { config { "
        f"name: {json.dumps(MODEL)} base_path: {json.dumps(str(base_path))} "
        "model_version_policy { all {} } } }\n"
    )


@contextmanager
def served(config: Path, transport: str) -> Iterator[tuple[str, str]]:
    """Runs a server of what was exported and yields its addresses, of gRPC and HTTP.

    Raises:
        Failed: It did not come up in time, or did not end with 0.

    """
    command = [sys.executable, "-m", "tfs", "serve", "--any_port"]
    command += [f"--model_config_file={config}"]
    port = free_port()
    command += [f"--grpc_transport={transport}", f"--rest_api_port={port}"]
    server = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    addresses: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=follow, args=(server, addresses), daemon=True)
    reader.start()
    try:
        try:
            address = addresses.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            address = ""
        if not address:
            raise Failed("the server did not say where it listens")
        yield address, f"127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        reader.join()
    if server.returncode != 0:
        raise Failed(f"the server ended with {server.returncode} on SIGTERM, not 0")


def follow(server: subprocess.Popen[str], addresses: queue.Queue[str]) -> None:
    """Shows what the server prints; puts its address, and "" when it has ended."""
    assert server.stdout is not None
    for line in server.stdout:
        print(f"    server: {line.rstrip()}", flush=True)
        if found := re.search(r"listening on (\S+:\d+)", line):
            addresses.put(found[1].replace("0.0.0.0", "127.0.0.1"))
    addresses.put("")


def upstream_peer(venv: Path, model_dir: Path) -> Peer:
    """Returns the pip package, as a peer."""
    client = str(HERE / "upstream_client.py")

    def set_up() -> None:
        python = str(make_environment(venv))
        for order in ("before", "after"):
            print(f"==> one process, their packages imported {order} ours", flush=True)
            call([python, client, "exchange", order], CLIENT_TIMEOUT_S)

    def talk(server: Server) -> str:
        command = [str(venv / "bin" / "python"), client, "talk"]
        command += ["--expected", str(model_dir / "expected.json")]
        call([*command, "--address", server.address], CLIENT_TIMEOUT_S)
        return "every method through the real stubs"

    def check_table(address: str, cases: Sequence[Case]) -> str:
        asked = [
            {"path": case.path, "message": base64.b64encode(case.message).decode()}
            for case in cases
        ]
        with tempfile.TemporaryDirectory() as folder:
            calls, outcomes = Path(folder, "calls.json"), Path(folder, "outcomes.json")
            calls.write_text(json.dumps(asked))
            command = [str(venv / "bin" / "python"), client, "table"]
            command += ["--address", address, "--calls", str(calls)]
            call([*command, "--outcomes", str(outcomes)], CLIENT_TIMEOUT_S)
            found = json.loads(outcomes.read_text())
        return judge(
            cases,
            [
                (each["code"], each["details"], base64.b64decode(each["reply"]))
                for each in found
            ],
        )

    return Peer("tensorflow-serving-api", set_up, talk, check_table)


def wait_until_ready(url: str) -> None:
    """Blocks until a version answers; it may be the first thing that is asked for.

    Raises:
        Failed: It does not come to that.

    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=START_TIMEOUT_S):
                return
        except urllib.error.URLError as error:
            if time.monotonic() > deadline_s:
                raise Failed(f"{url} is not ready: {error}") from None
        time.sleep(0.1)


def oip_peer(name: str, client: str) -> Peer:
    """Returns a client of the Open Inference Protocol, as a peer."""
    venv = ROOT / f".venv-clients-{client}"

    def set_up() -> None:
        make_environment(venv, HERE / "oip" / f"{client}.txt")

    def talk(server: Server) -> str:
        if not server.http:
            raise Failed("it needs --http")
        for version in VERSIONS:
            wait_until_ready(
                f"http://{server.http}/v2/models/{MODEL}/versions/{version}"
            )
        with tempfile.TemporaryDirectory() as folder:
            expected = Path(folder, "expected.json")
            expected.write_text(json.dumps(server.expected))
            command = [str(venv / "bin" / "python")]
            command += [str(HERE / "oip" / f"{client}_client.py")]
            command += ["--expected", str(expected), "--grpc_address", server.address]
            call([*command, "--http_address", server.http], CLIENT_TIMEOUT_S)
        return "the Open Inference Protocol over gRPC and HTTP"

    return Peer(name, set_up, talk, None)


def schemathesis_peer() -> Peer:
    """Returns what makes requests up from /openapi.json, as a peer."""
    venv = ROOT / ".venv-clients-schemathesis"

    def set_up() -> None:
        make_environment(venv, HERE / "openapi" / "schemathesis.txt")

    def fuzz(server: Server) -> str:
        if not server.http:
            raise Failed("it needs --http")
        # Not whether answers fit their schemas: Infinity is no number to its parser.
        checks = "not_a_server_error,content_type_conformance,status_code_conformance"
        command = [str(venv / "bin" / "schemathesis"), "run", "--seed", "1"]
        command += [f"http://{server.http}/openapi.json", "--checks", checks]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "50"]
        call(command, CLIENT_TIMEOUT_S)
        return "requests made up from /openapi.json, none a fault of the server"

    return Peer("schemathesis", set_up, fuzz, None)


def wait_until_served(server: Server) -> None:
    """Blocks until the model answers.

    Raises:
        Failed: It does not in time.

    """
    import grpc

    from tests.clients.peers import PREDICT, predict_request

    fault = "no answer"
    deadline_s = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(server.address) as channel:
        predict = channel.unary_unary(PREDICT, bytes, bytes)
        while time.monotonic() < deadline_s:
            try:
                predict(predict_request(server), timeout=5, wait_for_ready=True)
                return
            except grpc.RpcError as error:
                fault = f"{error.code().name}: {error.details()}"
                time.sleep(0.1)  # it is loading; there is nothing to wait on
    raise Failed(f"the model is not served: {fault}")


def check(arguments: argparse.Namespace, model_dir: Path) -> dict[str, str]:
    """Lets the peers that were asked for at the server.

    Returns:
        By peer and transport, what was done, or "FAILED: " and why.

    """
    peers = [
        upstream_peer(arguments.venv, model_dir),
        *PEERS,
        oip_peer("tritonclient", "triton"),
        oip_peer("KServe's client", "kserve"),
        schemathesis_peer(),
    ]
    wanted = arguments.peers.split(",") if arguments.peers else []
    unknown = set(wanted) - {peer.name for peer in peers}
    if unknown:
        raise Failed(f"no such peer: {', '.join(sorted(unknown))}")
    peers = [peer for peer in peers if peer.name in wanted or not wanted]
    results: dict[str, str] = {}
    ready = []
    for peer in peers:
        print(f"==> setting up {peer.name}", flush=True)
        try:
            peer.set_up()
        except RuntimeError as failure:
            results[peer.name] = f"FAILED: {failure}"
            print(f"    {results[peer.name]}", flush=True)
        else:
            ready.append(peer)
    if not (model_dir / "expected.json").exists():
        print("==> exporting a small model, two versions", flush=True)
        export(model_dir)
    if arguments.address:
        addresses = arguments.address, arguments.http or ""
        results |= check_server(addresses, "as given", model_dir, ready)
        return results
    table_config = table.export(model_dir)
    for transport in TRANSPORTS:
        with served(model_dir / "models.config", transport) as addresses:
            results |= check_server(addresses, transport, model_dir, ready)
        with served(table_config, transport) as (address, _):
            results |= check_table(address, transport, ready)
    return results


def check_table(address: str, transport: str, peers: list[Peer]) -> dict[str, str]:
    """Lets the peers make every call of the conformance table."""
    import grpc

    from tfs.proto.grpc.health.v1 import health_pb2

    request = health_pb2.HealthCheckRequest(service=table.MODEL).SerializeToString()
    cases = table.cases()
    deadline_s = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(table.HEALTH_CHECK, bytes, bytes)
        is_ready = False
        while not is_ready and time.monotonic() < deadline_s:
            with contextlib.suppress(grpc.RpcError):
                reply = check(request, timeout=5, wait_for_ready=True)
                status = health_pb2.HealthCheckResponse.FromString(reply).status
                is_ready = status == health_pb2.HealthCheckResponse.SERVING
            time.sleep(0.1)  # it is loading; there is nothing to wait on
    results = {}
    for peer in peers:
        if peer.check_table is None:
            continue
        name = f"the table by {peer.name} over {transport}"
        print(f"==> {name}", flush=True)
        try:
            results[name] = peer.check_table(address, cases)
        except RuntimeError as failure:
            results[name] = f"FAILED: {failure}"
        print(f"    {results[name]}", flush=True)
    return results


def check_server(
    addresses: tuple[str, str], transport: str, model_dir: Path, peers: list[Peer]
) -> dict[str, str]:
    """Lets the peers at one server, one after the other."""
    expected = json.loads((model_dir / "expected.json").read_text())
    server = Server(addresses[0], expected, addresses[1])
    wait_until_served(server)
    results = {}
    for peer in peers:
        name = f"{peer.name} over {transport}"
        print(f"==> {name}", flush=True)
        try:
            results[name] = peer.check(server)
        except RuntimeError as failure:
            results[name] = f"FAILED: {failure}"
        print(f"    {results[name]}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Checks TFS with clients that are not ours."
    )
    parser.add_argument("--venv", type=Path, default=VENV, help="the clients' packages")
    parser.add_argument("--peers", help="some of them, by name, with commas")
    parser.add_argument("--address", help="a running server instead of a new one")
    parser.add_argument("--http", help="where the HTTP port of that server is")
    parser.add_argument("--model_dir", type=Path, help="what that server serves")
    parser.add_argument("--export_only", action="store_true", help="write --model_dir")
    arguments = parser.parse_args()
    if (arguments.address or arguments.export_only) and not arguments.model_dir:
        parser.error("--address and --export_only need --model_dir")
    if arguments.export_only:
        export(arguments.model_dir.resolve())
        print(f"exported to {arguments.model_dir}")
        return 0
    try:
        with tempfile.TemporaryDirectory() as scratch:
            model_dir = (arguments.model_dir or Path(scratch)).resolve()
            results = check(arguments, model_dir)
    except RuntimeError as failure:
        print(f"test-clients: {failure}", file=sys.stderr)
        return 1
    for name, result in results.items():
        print(f"test-clients: {name}: {result}")
    failed = [name for name, result in results.items() if result.startswith("FAILED")]
    print(f"test-clients: {len(failed)} failed" if failed else "test-clients: passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
