"""A real server's REST API, asked as TensorFlow Serving's is."""

from __future__ import annotations

import dataclasses
import gzip
import html
import io
import json
import re
import shlex
import signal
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

import tfs.export
from tests.certificates import Certificates
from tests.e2e.rest import Rest
from tests.e2e.serving import Serving, free_port
from tests.models.digits import DigitClassifier
from tfs.cli.main import main
from tfs.client.arrays import fill_tensor
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.proto.tfs.v1 import admin_service_pb2
from tfs.testing.patience import PATIENCE_S

PIXELS = torch.rand(2, 64)
MAX_JSON_BYTES = 16_000_000
ADMIN = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]


@pytest.fixture(scope="module")
def unix_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        yield Path(folder) / "http"


@pytest.fixture(scope="module")
def rest(
    scale: Path, unix_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rest]:
    base = tmp_path_factory.mktemp("rest")
    model = DigitClassifier().eval()
    labels = [f"digit {i}" for i in range(10)]
    tfs.export.save(
        model, PIXELS, str(base / "digits"), 1, method="classify", labels=labels
    )
    config = base / "models"
    config.write_text(
        f'model_config_list {{ config {{ name: "scale" base_path: "{scale}" '
        "model_version_policy { all {} } "
        'version_labels { key: "stable" value: 1 } } '
        f'config {{ name: "digits" base_path: "{base / "digits"}" }} }}'
    )
    port = free_port()
    flags = (
        f"--model_config_file={config}",
        f"--rest_api_port={port}",
        "--rest_api_enable_cors_support=true",
        f"--max_json_bytes={MAX_JSON_BYTES}",
        f"--rest_api_socket_path={unix_path}",
    )
    with Serving(*flags) as serving:
        for which in ("scale/1", "scale/2", "digits/1"):
            serving.wait_for(f"{which} is available")
        yield Rest(port)
        assert serving.stop() == 0


@pytest.mark.parametrize(
    ("path", "factor"),
    [
        ("scale", 2),
        ("scale/versions/1", 1),
        ("scale/versions/2", 2),
        ("scale/labels/stable", 1),
    ],
)
def test_predict_in_rows_and_in_columns(rest: Rest, path: str, factor: int) -> None:
    """Of the newest version, or the one that is named (Predict)."""
    rows = [[1, 2], [3, 4]]
    expected = [[factor * value for value in row] for row in rows]
    url = f"/v1/models/{path}:predict"
    status, reply, headers = rest.ask(url, {"instances": rows})
    assert (status, reply) == (200, {"predictions": expected})
    assert headers["Content-Type"] == "application/json"
    assert rest.ask(url, {"inputs": {"x": rows}})[1] == {"outputs": expected}


def test_a_bad_row_may_fail_alone(rest: Rest) -> None:
    """``?per_item=true``: its error stands in its place, and the others are answered."""
    body: dict[str, object] = {"instances": [[1, 2], ["x", 2], [3], [5, 6]]}
    status, reply, _ = rest.ask("/v1/models/scale:predict?per_item=true", body)
    assert status == 200
    first, second, third, last = reply["predictions"]
    assert (first, last) == ([2, 4], [10, 12])
    assert "not of expected type" in second["error"]
    assert "must have shape" in third["error"]
    status, reply, _ = rest.ask("/v1/models/none:predict?per_item=true", body)
    assert status == 404
    assert rest.ask("/v1/models/scale:predict", body)[0] == 400
    body["signature_name"] = "other"  # which is no row's fault
    assert rest.ask("/v1/models/scale:predict?per_item=true", body)[0] == 400


@pytest.mark.parametrize(
    "accept", ["", "application/json", "application/x-npy; q=0.0, application/json"]
)
def test_tensors_may_travel_as_they_are(rest: Rest, accept: str) -> None:
    """As NumPy's files, MessagePack or the message of gRPC; the answer as accepted."""
    rows = np.array([[1, 2], [3, 4]], np.float32)
    file = io.BytesIO()
    np.save(file, np.asfortranarray(rows))
    request = predict_pb2.PredictRequest()
    fill_tensor(request.inputs["x"], rows, "x")
    packed = {"dtype": "float32", "shape": [2, 2], "data": rows.tobytes()}
    bodies = {
        "application/x-npy": file.getvalue(),
        "application/msgpack": msgpack.packb({"inputs": {"x": packed}}),
        "application/x-protobuf": request.SerializeToString(),
    }
    for kind, body in bodies.items():
        headers = {"Content-Type": kind} | ({"Accept": accept} if accept else {})
        status, reply, given = rest.ask("/v1/models/scale:predict", body, **headers)
        assert status == 200, reply
        assert given["Content-Type"] == ("application/json" if accept else kind)
        if accept:
            found = np.array(reply["outputs"])
        elif kind == "application/x-npy":
            found = np.load(io.BytesIO(reply))
        elif kind == "application/msgpack":
            (tensor,) = msgpack.unpackb(reply)["outputs"].values()
            found = np.frombuffer(tensor["data"], tensor["dtype"]).reshape(2, 2)
        else:
            response = predict_pb2.PredictResponse.FromString(reply)
            (output,) = response.outputs.values()
            found = np.frombuffer(output.tensor_content, np.float32).reshape(2, 2)
        assert found.tolist() == (2 * rows).tolist()


@pytest.mark.parametrize("form", [[], ["msgpack"], ["npy"], ["protobuf"]])
def test_the_command_predicts_over_http(
    rest: Rest, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    """``tfs predict --http`` shows what it shows over gRPC, whatever the form."""
    server = ["--address", rest.base.removeprefix("http://")]
    asked = ["predict", "scale", "--input", "x=[[1, 2]]", *server, "--http", *form]
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["version"], answer["outputs"]) == (2, {"y": [[2, 4]]})
    assert main([*asked, "--label", "stable"]) == 0
    assert capsys.readouterr().out.startswith("scale/1 serving_default\n")


def test_the_command_says_what_went_wrong_over_http(
    rest: Rest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's words, or the flag that would help."""
    server = ["--address", rest.base.removeprefix("http://")]
    nobody = ["--address", f"127.0.0.1:{free_port()}"]
    npy = tmp_path / "x.npy"
    np.save(npy, np.ones((1, 3), np.float32))
    for arguments, words in (
        (["none", *server, "--http"], "Servable not found"),
        (["scale", *server, "--http", "npy"], "must have shape"),
        (["scale", *server, "--http", "npy", "--output", "y"], "need --http protobuf"),
        (["scale", *nobody, "--http"], "--rest_api_port"),
        (["scale", "--address", rest.base, "--http"], "HOST:PORT"),
    ):
        assert main(["predict", "--input", f"x={npy}", *arguments]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/x-npy", b"abc", "no .npy file"),
        ("application/x-npy", b"\x93NUMPY\x01\x00\x05\x00{]", "no readable head"),
        ("application/msgpack", b"\xc1", "MessagePack parse error: malformed"),
        ("application/msgpack", b"\x01", "no map"),
        (
            "application/msgpack",
            msgpack.packb({"inputs": {"dtype": "f", "shape": 1, "data": b""}}),
            "is no tensor",
        ),
        (
            "application/msgpack",
            msgpack.packb(
                {"inputs": {"dtype": "int8", "shape": [1, 2], "data": b"ab"}}
            ),
            "a tensor of int8 was sent for one of float32",
        ),
        ("application/x-protobuf", b"\xff", "PredictRequest"),
    ],
)
def test_tensors_that_are_none_are_refused(
    rest: Rest, kind: str, body: bytes, message: str
) -> None:
    """The error is JSON, whatever the form of the request."""
    headers = {"Content-Type": kind}
    status, reply, _ = rest.ask("/v1/models/scale:predict", body, **headers)
    assert status == 400
    assert message in reply["error"]


def test_classify_takes_examples_and_names_labels(rest: Rest) -> None:
    """Its results are lists of labels and scores (Classify)."""
    examples = [{"pixels": row} for row in PIXELS.tolist()]
    status, reply, _ = rest.ask("/v1/models/digits:classify", {"examples": examples})
    assert status == 200, reply
    assert [len(row) for row in reply["results"]] == [10, 10]
    label, score = reply["results"][0][3]
    assert label == "digit 3"
    assert isinstance(score, float)


def test_status_and_metadata(rest: Rest) -> None:
    """In protobuf's JSON: names as in the messages (GetStatus, GetModelMetadata)."""
    _, reply, _ = rest.ask("/v1/models/scale")
    found = [each["version"] for each in reply["model_version_status"]]
    assert found == ["2", "1"]
    _, reply, _ = rest.ask("/v1/models/scale/versions/1")
    assert reply == {
        "model_version_status": [
            {
                "version": "1",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    _, reply, _ = rest.ask("/v1/models/digits/metadata")
    assert reply["model_spec"]["version"] == "1"
    signature = reply["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/classify"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/models/none:predict", {"instances": [1]}, 404, "none"),
        ("/v1/models/none", None, 404, "none"),
        ("/v1/models/scale/versions/9:predict", {"instances": [1]}, 404, "9"),
        ("/v1/models/scale/labels/none:predict", {"instances": [1]}, 400, "none"),
        ("/v1/models", None, 400, "Missing model name in request."),
        ("/v1/nothing", None, 400, "Malformed request: GET /v1/nothing"),
        ("/elsewhere", None, 404, "there is nothing at /elsewhere"),
        ("/v1/models/scale:predict", b"{", 400, "JSON Parse error"),
        (
            "/v1/models/scale:predict",
            {"instances": [[1, 2]], "signature_name": "other"},
            400,
            'Serving signature name: "other" not found in signature def',
        ),
        ("/v1/models/scale:predict", {"instances": ["x"]}, 400, "not of expected type"),
        (
            "/v1/models/scale:predict",
            b" " * (MAX_JSON_BYTES + 1),
            429,
            "--max_json_bytes",
        ),
        ("/v1/models/scale:classify", {"examples": []}, 400, "empty array"),
    ],
)
def test_errors_are_json_with_the_status_of_their_code(
    rest: Rest, path: str, body: object, status: int, message: str
) -> None:
    """``{"error": "..."}``, as TensorFlow Serving answers.

    PredictModelNameVersionErrors, PredictRequestErrors, StatusError, kPathRegex.
    """
    found, reply, headers = rest.ask(path, body)
    assert found == status
    assert reply.keys() == {"error"}
    assert message in reply["error"]
    assert headers["Content-Type"] == "application/json"


ROW = b'{"instances": [[1, 2]]}'
MSGPACK, PROTOBUF = "application/msgpack", "application/x-protobuf"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request, and what its answer says."""

    says: str
    status: int
    # What takes long to make is made by its test, not by each process that collects it.
    body: bytes | Callable[[], bytes] = ROW
    path: str = "/v1/models/scale:predict"
    verb: str = "POST"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def of(self, rest: Rest) -> tuple[int, Any, dict[str, str]]:
        body = self.body if isinstance(self.body, bytes) else self.body()
        return rest.ask(self.path, body, self.verb, **self.headers)


NONE = "/v1/models/scale/labels/none"
STABLE = "/v1/models/scale/labels/stable/metadata"
NO_INT64 = "Failed to convert version: 9223372036854775808 to numeric."
QUIRKS = {
    "any case": Asked("predictions", 200, path="/v1/MODELS/scale:PREDICT"),
    "any content type": Asked(
        "predictions", 200, headers={"Content-Type": "text/html"}
    ),
    "text behind the value": Asked("predictions", 200, ROW + b" and more"),
    "unknown keys": Asked("predictions", 200, b'{"more": 1, "instances": [[1, 2]]}'),
    "Inf": Asked("predictions", 200, b'{"instances": [[-Inf, NaN]]}'),
    "a name that is encoded": Asked("model_ver", 200, b"", "/v1/models/%73cale", "GET"),
    "a status with a label": Asked("model_version_status", 200, b"", NONE, "GET"),
    "metadata of a label": Asked('"version": "1"', 200, b"", STABLE, "GET"),
    "a version that is no int64": Asked(
        NO_INT64, 400, b"", f"/v1/models/scale/versions/{1 << 63}", "GET"
    ),
    "both layouts": Asked(
        "expecting only one of", 400, b'{"instances": [1], "inputs": 1}'
    ),
    "an empty body": Asked("is empty", 400, b""),
    "a preflight of nobody": Asked("Origin", 400, b"", "/v1/models/scale", "OPTIONS"),
}


@pytest.mark.parametrize("case", QUIRKS)
def test_what_clients_of_tensorflow_serving_rely_on(rest: Rest, case: str) -> None:
    """The quirks of its REST API."""
    found, reply, given = QUIRKS[case].of(rest)
    assert found == QUIRKS[case].status, reply
    assert QUIRKS[case].says in json.dumps(reply)
    assert given["Content-Type"] == "application/json"


def million_keys() -> bytes:
    keys = b",".join(b'"%d":0' % i for i in range(1_000_000))
    return b'{"instances": [{%s}]}' % keys


def bomb() -> bytes:
    return gzip.compress(b" " * 100_000_000)


def packed(shape: list[int]) -> bytes:
    tensor = {"dtype": "float32", "shape": shape, "data": b""}
    return msgpack.packb({"inputs": {"x": tensor}})  # type: ignore[no-any-return]


def twice_wanted() -> bytes:
    request = predict_pb2.PredictRequest(output_filter=["y", "y"])
    fill_tensor(request.inputs["x"], np.ones((1, 2), np.float32), "x")
    return request.SerializeToString()


DIGITS = "/v1/models/digits:classify"
DEEP = b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}"
HUGE_FEATURE = b'{"examples": [{"pixels": [1e999]}]}'
BEYOND = b'{"examples": [{"pixels": 9223372036854775808}]}'
GZIP = {"Content-Encoding": "gzip"}
IN_MSGPACK = {"Content-Type": MSGPACK}
HOSTILE = {
    "nesting": Asked("JSON Parse error", 400, b"[" * 250_000),
    "deep lists": Asked("32 levels", 400, DEEP),
    "bomb": Asked("more than", 429, bomb, headers=GZIP),
    "a million keys": Asked("named input: 0", 400, million_keys),
    "lone surrogate": Asked("float", 400, b'{"inputs": "\\ud800"}'),
    "1e999": Asked("too big", 400, b'{"inputs": 1e999}'),
    "a long number": Asked("a name", 400, b"{" + b"9" * 1_000_000),
    "ragged": Asked("size: 2", 400, b'{"inputs": [[1], [2, 3]]}'),
    "not UTF-8": Asked("encoding", 400, b'{"inputs": "\xff"}'),
    "a huge shape": Asked("", 400, packed([1 << 62, 4]), headers=IN_MSGPACK),
    "a negative shape": Asked("", 400, packed([-1, 2]), headers=IN_MSGPACK),
    "an output twice": Asked(
        "y", 400, twice_wanted, headers={"Content-Type": PROTOBUF}
    ),
    "another folder": Asked(
        "etc", 404, b'{"inputs": 1}', "/v1/models/..%2F..%2Fetc:predict"
    ),
    "not a feature": Asked("too big", 400, HUGE_FEATURE, DIGITS),
    "a feature beyond int64": Asked("Only int64_t", 400, BEYOND, DIGITS),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_bad_input_gets_an_error_and_changes_nothing_else(
    rest: Rest, case: str
) -> None:
    """In JSON, with the status of its code; the next request is answered as ever."""
    found, reply, _ = HOSTILE[case].of(rest)
    assert (found, reply.keys()) == (HOSTILE[case].status, {"error"}), reply
    assert HOSTILE[case].says in reply["error"]
    good = {"instances": [[1, 2]]}
    assert rest.ask("/v1/models/scale:predict", good)[1] == {"predictions": [[2, 4]]}


REFUSED = (400, 401, 403, 404, 405, 501)


def test_nobody_changes_the_server_without_its_key(rest: Rest) -> None:
    """Whatever the verb, the path or its alias, and wherever the request is from."""
    before = rest.ask("/v1/models/scale")[1]
    known = rest.ask("/elsewhere")[1]["error"].partition("there are ")[2].split(", ")
    assert {"/v1/", "/v2/", "/healthz", "/readyz", "/metrics"} <= {*known, "/v2/"}
    methods = [
        "tensorflow.serving.ModelService/HandleReloadConfigRequest",
        *(f"tfs.v1.AdminService/{each.name}" for each in ADMIN.methods),
    ]
    changes = [f"/v2/repository/models/scale/{verb}" for verb in ("load", "unload")]
    paths = [*known, *changes, "/v1/models/scale", "/v2/models/scale"]
    aliases = [
        alias
        for path in [*paths, *(f"/{method}" for method in methods)]
        for alias in (path, f"/{path}", path.upper(), f"{path}/", f"{path}?a=/metrics")
    ]
    form = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": "http://example.test",
    }
    for alias in aliases:
        assert rest.ask(alias, b"model=scale&version=1", **form)[0] in REFUSED
        for verb in ("PUT", "DELETE", "PATCH", "TRACE"):
            assert rest.ask(alias, verb=verb, **form)[0] in REFUSED
    assert rest.ask("/v1/models/scale")[1] == before


def test_pages_of_other_origins_may_use_it_if_the_operator_says_so(rest: Rest) -> None:
    """--rest_api_enable_cors_support answers the browser's question before the request."""
    request = urllib.request.Request(
        rest.base + "/v1/models/scale:predict",
        method="OPTIONS",
        headers={"Origin": "http://example.test"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        assert reply.headers["Access-Control-Allow-Origin"] == "*"
        assert reply.read() == b""
    _, _, headers = rest.ask("/v1/models/none")
    assert headers["Access-Control-Allow-Methods"] == "POST, GET"


def test_what_is_pasted_from_its_description_works(rest: Rest) -> None:
    """/openapi.json is valid; each example of it, and each line of /docs, is answered."""
    document = rest.ask("/openapi.json")[1]
    validate(document)
    paths = document["paths"]
    assert "/v1/models/digits:classify" in paths
    one = rest.ask("/v1/models/scale/labels/stable/openapi.json")[1]
    validate(one)
    paths = paths | one["paths"]
    assert "/v1/models/scale/labels/stable:predict" in paths
    num_examples = 0
    for path, item in paths.items():
        if "get" in item:
            assert rest.ask(path)[0] == 200
            continue
        content = item["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            num_examples += 1
            status, reply, _ = rest.ask(path, example["value"])
            assert status == 200, reply
            answer = item["post"]["responses"]["200"]["content"]["application/json"]
            OAS31Validator(answer["schema"]).validate(reply)
    status, page, _ = rest.ask("/docs")
    lines = re.findall('<pre tabindex="0">(.*?)</pre>', page)
    assert len(lines) == num_examples - 1
    for line in lines:
        _, _, data, url = shlex.split(html.unescape(line))
        path = url.removeprefix(rest.base)
        assert rest.ask(path, data.encode())[0] == 200
    assert rest.ask("/v1/models/none/openapi.json")[0] == 404
    assert "digits" in rest.ask("/docs?model=scale")[1]


def test_health_and_metrics_lie_beside_it(rest: Rest) -> None:
    """For probes of orchestrators, and for Prometheus."""
    assert rest.ask("/healthz")[:2] == (200, "alive\n")
    assert rest.ask("/readyz")[:2] == (200, "ready\n")
    assert rest.ask("/readyz?model=scale")[:2] == (200, "ready\n")
    assert rest.ask("/readyz?model=none")[0] == 404
    rest.ask("/v1/models/scale:predict", {"instances": [[1, 2]]})
    status, text, headers = rest.ask("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert ':tensorflow:serving:request_count{model_name="scale",status="OK"}' in text


def test_the_same_is_on_a_unix_socket(rest: Rest, unix_path: Path) -> None:
    """--rest_api_socket_path, for a proxy on this machine."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(unix_path))
        client.sendall(b"GET /v1/models/scale HTTP/1.0\r\n\r\n")
        with client.makefile("rb") as answer:
            assert b'"state": "AVAILABLE"' in answer.read()


def test_who_still_comes_is_served_while_balancers_hear_of_the_end(
    scale: Path, tmp_path: Path
) -> None:
    """After SIGTERM the server is not ready, and takes requests for --drain_wait_s.

    Over TLS: --rest_api_tls uses the certificate of gRPC.
    """
    certificates = Certificates()
    port = free_port()
    flags = (
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--rest_api_port={port}",
        f"--ssl_config_file={certificates.write_config(tmp_path)}",
        "--rest_api_tls",
        "--drain_wait_s=2",
        "--max_connection_age_s=3600",
    )
    with Serving(*flags) as serving:
        serving.wait_for("scale/2 is available")
        rest = Rest(port, certificates)
        assert rest.ask("/readyz")[0] == 200
        authority = tmp_path / "authority.pem"
        authority.write_bytes(certificates.authority)
        tls = ["--address", f"127.0.0.1:{port}", "--ca", str(authority)]
        assert main(["predict", "scale", "--input", "x=[[1, 2]]", "--http", *tls]) == 0
        serving.process.send_signal(signal.SIGTERM)
        serving.wait_for("draining")
        assert rest.ask("/readyz")[0] == 503
        assert rest.ask("/healthz")[0] == 200
        body = {"instances": [[1, 2]]}
        assert rest.ask("/v1/models/scale:predict", body)[0] == 200
        assert serving.process.wait(PATIENCE_S) == 0


def test_json_that_will_never_have_room_is_not_asked_to_come_again(scale: Path) -> None:
    """The smaller one of the two flags that bound it is the limit."""
    port = free_port()
    flags = (
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--rest_api_port={port}",
        f"--max_receive_bytes={16 << 20}",
    )
    with Serving(*flags) as serving:
        serving.wait_for("scale/2 is available")
        body = b" " * ((14 << 20) // 10 + 1)
        status, reply, _ = Rest(port).ask("/v1/models/scale:predict", body)
    assert status == 429
    assert reply["error"].startswith(f"{len(body)} bytes of JSON are more than the")
