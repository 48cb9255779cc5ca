"""A real server asked by the Open Inference Protocol, and operated over HTTP by its key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.page_key import page_url
from tests.e2e.rest import Rest
from tests.e2e.serving import Serving, free_port
from tfs.handlers.oip.rest import ROUTES
from tfs.handlers.service_names import OIP
from tfs.proto.inference import open_inference_grpc_pb2 as pb
from tfs.server.page.handler import ROUTES as PAGE_ROUTES
from tfs.testing.patience import PATIENCE_S

X = np.array([[1, 2], [3, 4]], np.float32)


class Server:
    """A server, asked by both transports.

    Attributes:
        rest: Over HTTP.
        key: What operates it over HTTP.

    """

    def __init__(self, serving: Serving, port: int) -> None:
        self.rest = Rest(port)
        self.address = serving.address
        self._channel = grpc.insecure_channel(serving.address)
        url, _, self.key = page_url(serving.address).partition("/#key=")
        assert url == self.rest.base
        assert len(self.key) > 20

    def call(self, method: str, request: Any) -> Any:
        reply = getattr(pb, type(request).__name__.replace("Request", "Response"))
        return self._channel.unary_unary(
            f"/{OIP}/{method}",
            lambda message: message.SerializeToString(),
            reply.FromString,
        )(request, timeout=PATIENCE_S)

    def infer(self, version: str = "") -> np.ndarray[Any, Any]:
        request = pb.ModelInferRequest(
            model_name="scale", model_version=version, raw_input_contents=[X.tobytes()]
        )
        request.inputs.add(name="x", datatype="FP32", shape=X.shape)
        response = self.call("ModelInfer", request)
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(2, 2)


@pytest.fixture(scope="module")
def server(scale: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("oip") / "models"
    config.write_text(
        f'model_config_list {{ config {{ name: "scale" base_path: "{scale}" '
        'version_labels { key: "stable" value: 1 } '
        "model_version_policy { all {} } } }"
    )
    port = free_port()
    with Serving(
        f"--model_config_file={config}",
        f"--rest_api_port={port}",
        "--rest_api_enable_cors_support=true",
        "--admin_from=any",
    ) as serving:
        for which in ("scale/1", "scale/2"):
            serving.wait_for(f"{which} is available")
        yield Server(serving, port)
        assert serving.stop() == 0


def test_health_and_metadata_are_the_same_over_both(server: Server) -> None:
    """What HTTP says is the message of gRPC as JSON."""
    assert server.call("ServerLive", pb.ServerLiveRequest()).live
    assert server.call("ServerReady", pb.ServerReadyRequest()).ready
    assert server.rest.ask("/v2/health/live")[:2] == (200, {"live": True})
    assert server.rest.ask("/v2/health/ready")[:2] == (200, {"ready": True})
    metadata = server.call("ServerMetadata", pb.ServerMetadataRequest())
    _, document, _ = server.rest.ask("/v2")
    assert document["extensions"] == list(metadata.extensions)
    assert not any("shared_memory" in each for each in metadata.extensions)
    model = server.call("ModelMetadata", pb.ModelMetadataRequest(name="scale"))
    assert list(model.versions) == ["1", "2"]
    _, document, _ = server.rest.ask("/v2/models/scale")
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert list(model.inputs[0].shape) == [-1, 2]


def test_readiness_of_models_and_versions(server: Server) -> None:
    """Whoever cannot answer is not ready; over HTTP that is 503."""
    for name, version, ready in (
        ("scale", "", True),
        ("scale", "1", True),
        ("scale", "9", False),
        ("unknown", "", False),
    ):
        request = pb.ModelReadyRequest(name=name, version=version)
        assert server.call("ModelReady", request).ready == ready
        which = f"/versions/{version}" if version else ""
        status, document, _ = server.rest.ask(f"/v2/models/{name}{which}/ready")
        assert (status, document) == (
            200 if ready else 503,
            {"name": name, "ready": ready},
        )


def test_inference_and_its_counts(server: Server) -> None:
    """Of the newest version or of the one that is named; both transports count alike."""
    request = pb.ModelStatisticsRequest(name="scale", version="1")
    before = server.call("ModelStatistics", request).model_stats[0]
    assert (server.infer() == 2 * X).all()
    assert (server.infer("1") == X).all()
    text = json.dumps(
        {
            "id": "seven",
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": X.tolist()}
            ],
        }
    ).encode()
    status, document, _ = server.rest.ask("/v2/models/scale/versions/1/infer", text)
    assert status == 200
    assert (document["id"], document["model_version"]) == ("seven", "1")
    assert document["outputs"][0]["data"] == [1, 2, 3, 4]
    wanted = before.execution_count + 2
    after = before
    for _ in range(1000):  # a request is counted when its answer is on its way
        after = server.call("ModelStatistics", request).model_stats[0]
        if after.execution_count >= wanted:
            break
    assert after.execution_count == wanted
    assert after.inference_count >= before.inference_count + 2
    _, document, _ = server.rest.ask("/v2/models/scale/versions/1/stats")
    assert document["model_stats"][0]["inference_count"] == after.inference_count


def test_a_model_is_unloaded_and_loaded_again(server: Server) -> None:
    """Each call returns when it has happened; what is not configured is NOT_FOUND."""
    index = pb.RepositoryIndexRequest(ready=True)
    unload = pb.RepositoryModelUnloadRequest(model_name="scale")
    load = pb.RepositoryModelLoadRequest(model_name="scale")
    try:
        server.call("RepositoryModelUnload", unload)
        assert not server.call("RepositoryIndex", index).models
        assert server.rest.ask("/v2/models/scale/ready")[0] == 503
        states = server.call("RepositoryIndex", pb.RepositoryIndexRequest()).models
        assert {each.state for each in states} <= {"UNAVAILABLE", "UNLOADING"}
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            server.infer()
    finally:
        server.call("RepositoryModelLoad", load)
    assert (server.infer() == 2 * X).all()
    assert len(server.call("RepositoryIndex", index).models) == 2
    load.model_name = "unknown"
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        server.call("RepositoryModelLoad", load)
    load.parameters["config"].string_param = "{}"
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        server.call("RepositoryModelLoad", load)


def test_the_key_operates_the_server_over_http(server: Server) -> None:
    """As a bearer, or as the cookie of the same origin; models are named in the path."""
    host = server.rest.base.partition("://")[2]
    cookie = {"Cookie": f"tfs_key={server.key}"}
    for headers in (
        {"Authorization": f"Bearer {server.key}", "Origin": "http://evil.example"},
        {**cookie, "Origin": f"http://{host}"},
        cookie,
    ):
        path = "/v2/repository/models/scale/load"
        assert server.rest.ask(path, b"", **headers)[:2] == (200, {})


def test_without_the_key_nothing_changes_over_http(server: Server) -> None:
    """From loopback and with --admin_from=any, every route and every verb, as a form would.

    CORS headers come with the API of TensorFlow Serving alone.
    """
    evil = {"Origin": "http://localhost:3000"}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    cookie = {"Cookie": f"tfs_key={server.key}"}
    guarded = 0
    routes = [
        *(
            (verb, route, method.startswith("RepositoryModel"))
            for verb, route, method in ROUTES
        ),
        *((verb, route, is_guarded) for verb, route, _, is_guarded in PAGE_ROUTES),
    ]
    for verb, route, is_guarded in routes:
        path = route.format(name="scale", version=1)
        for headers in (
            evil,
            {**evil, **form},
            {**evil, **cookie},
            {"Authorization": "Bearer x"},
        ):
            status, document, given = server.rest.ask(
                path, b"" if verb == "POST" else None, **headers
            )
            assert "Access-Control-Allow-Origin" not in given
            if is_guarded:
                guarded += 1
                assert status == 403, (path, document)
                assert "tfs page" in document["error"]
    assert guarded == 4 * (2 + 8)
    assert (server.infer() == 2 * X).all()
    _, _, given = server.rest.ask("/v1/models/scale", **evil)
    assert given["Access-Control-Allow-Origin"] == "*"
