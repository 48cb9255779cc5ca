"""A real server's traces, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

import tfs.export
from tests.e2e.rest import Rest
from tests.e2e.serving import Serving, free_port
from tfs.client.arrays import fill_tensor
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.patience import PATIENCE_S

SPANNED = Path(__file__).parents[1] / "models" / "spanned_servable.py"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
LOW = (1 << 32) - 1


@contextmanager
def collector(spans: list[Any]) -> Iterator[str]:
    """Collects spans by OTLP over HTTP; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask_grpc(address: str, metadata: tuple[tuple[str, str], ...]) -> dict[str, int]:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "spanned"
    fill_tensor(request.inputs["x"], np.ones(1, np.int64), "x")
    with grpc.insecure_channel(address) as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            predict_pb2.PredictRequest.SerializeToString,
            predict_pb2.PredictResponse.FromString,
        )
        response = predict(request, timeout=PATIENCE_S, metadata=metadata)
    return {key: each.int64_val[0] for key, each in response.outputs.items()}


def test_a_request_is_traced_into_the_models_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gRPC's metadata and HTTP's header; in a worker, the interpreter's span is current."""
    tfs.export.save_python(SPANNED, str(tmp_path / "spanned"))
    spans: list[Any] = []
    port = free_port()
    parent = f"00-{TRACE}-{SPAN}-01"
    flags = (
        "--model_name=spanned",
        f"--model_base_path={tmp_path / 'spanned'}",
        f"--rest_api_port={port}",
        "--interpreter_backend=process",
        "--load_probe_budget_s=0",
    )
    with collector(spans) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        with Serving(*flags, measures=True) as serving:
            serving.wait_for("spanned/1 is available")
            body = {"instances": [1]}
            path = "/v1/models/spanned:predict"
            _, untraced, _ = Rest(port).ask(path, body)
            assert untraced == {"predictions": [{"trace": 0, "span": 0}]}
            _, reply, _ = Rest(port).ask(path, body, traceparent=parent)
            (over_http,) = reply["predictions"]
            over_grpc = ask_grpc(serving.address, (("traceparent", parent),))
            assert serving.stop() == 0
    ids = {int.from_bytes(span.span_id, "big") & LOW: span for span in spans}
    low = int(TRACE, 16) & LOW
    for seen in (over_http, over_grpc):
        assert seen["trace"] == low
        span = ids[seen["span"]]
        names = []
        while span is not None:
            names.append(span.name)
            assert span.trace_id.hex() == TRACE
            span = ids.get(int.from_bytes(span.parent_span_id, "big") & LOW)
        assert names in (
            ["interpreter", "Predict"],
            ["interpreter", "batch", "Predict"],
        )
    requests = [span for span in spans if span.name == "Predict"]
    assert [span.parent_span_id.hex() for span in requests] == [SPAN] * 2
