"""Runs where tritonclient is installed: asks a server by its four clients.

    triton_client.py --expected FILE --grpc_address HOST:PORT --http_address HOST:PORT

Imports nothing of ours. The first check that fails ends it with a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

TOLERANCE = 1e-5


class Expected:
    """What run.py exported."""

    def __init__(self, path: str) -> None:
        content = json.loads(Path(path).read_text())
        self.model = content["model"]
        self.inputs = np.array(content["inputs"], np.float32)
        self.outputs = {
            version: np.array(rows, np.float32)
            for version, rows in content["outputs"].items()
        }

    def check(self, result: Any, version: str) -> None:
        got = result.as_numpy("scores")
        assert np.allclose(got, self.outputs[version], atol=TOLERANCE), (version, got)


def asked(module: Any, expected: Expected, **how: bool) -> list[Any]:
    tensor = module.InferInput("input", list(expected.inputs.shape), "FP32")
    tensor.set_data_from_numpy(expected.inputs, **how)
    return [tensor]


def refused(act: Any, word: str) -> None:
    message = ""
    try:
        act()
    except InferenceServerException as error:
        message = error.message()
    assert word in message, (word, message)


def check(module: Any, address: str, expected: Expected) -> None:
    """Everything that both synchronous clients have."""
    model, newest = expected.model, max(expected.outputs)
    with module.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(model)
        assert client.is_model_ready(model, newest)
        assert not client.is_model_ready(model, "99")
        client.get_server_metadata()
        client.get_model_metadata(model)
        inputs = asked(module, expected)
        for version in expected.outputs:
            result = client.infer(
                model,
                inputs,
                model_version=version,
                request_id="seven",
                outputs=[module.InferRequestedOutput("scores")],
                priority=2,
                timeout=60_000_000,
            )
            expected.check(result, version)
        expected.check(client.infer(model, inputs), newest)
        refused(lambda: client.infer(model, inputs, sequence_id=3), "sequences")
        refused(lambda: client.infer(model, inputs, parameters={"foo": 1}), "foo")
        refused(lambda: client.infer("unknown", inputs), "unknown")
        client.get_model_repository_index()
        client.get_inference_statistics(model)


async def check_aio(module: Any, sync: Any, address: str, expected: Expected) -> None:
    """The client of the same protocol for asyncio."""
    async with module.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_model_ready(expected.model)
        result = await client.infer(expected.model, asked(sync, expected))
        expected.check(result, max(expected.outputs))


def check_forms(address: str, expected: Expected) -> None:
    """JSON without binary tensors, and compressed both ways."""
    http = tritonclient.http
    plain = [http.InferRequestedOutput("scores", binary_data=False)]
    with http.InferenceServerClient(address) as client:
        result = client.infer(
            expected.model, asked(http, expected, binary_data=False), outputs=plain
        )
        expected.check(result, max(expected.outputs))
        result = client.infer(
            expected.model,
            asked(http, expected),
            request_compression_algorithm="gzip",
            response_compression_algorithm="gzip",
        )
        expected.check(result, max(expected.outputs))
        refused(lambda: client.unload_model(expected.model), "key")


def check_repository(address: str, expected: Expected) -> None:
    """Loading and unloading, which loopback may over gRPC."""
    with tritonclient.grpc.InferenceServerClient(address) as client:
        client.unload_model(expected.model)
        assert not client.is_model_ready(expected.model)
        client.load_model(expected.model)
        assert client.is_model_ready(expected.model)
        result = client.infer(expected.model, asked(tritonclient.grpc, expected))
        expected.check(result, max(expected.outputs))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("expected", "grpc_address", "http_address"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    expected = Expected(arguments.expected)
    check(tritonclient.grpc, arguments.grpc_address, expected)
    check(tritonclient.http, arguments.http_address, expected)
    check_forms(arguments.http_address, expected)
    asyncio.run(
        check_aio(
            tritonclient.grpc.aio, tritonclient.grpc, arguments.grpc_address, expected
        )
    )
    asyncio.run(
        check_aio(
            tritonclient.http.aio, tritonclient.http, arguments.http_address, expected
        )
    )
    check_repository(arguments.grpc_address, expected)


if __name__ == "__main__":
    main()
