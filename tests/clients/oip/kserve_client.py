"""Runs where KServe's client is installed: asks a server over gRPC and over REST.

    kserve_client.py --expected FILE --grpc_address HOST:PORT --http_address HOST:PORT

Imports nothing of ours. The first check that fails ends it with a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)

TOLERANCE = 1e-5


async def check(expected: dict[str, Any], grpc: str, http: str) -> None:
    model, inputs = expected["model"], np.array(expected["inputs"], np.float32)
    outputs = np.array(expected["outputs"][max(expected["outputs"])], np.float32)
    rest, base = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://{http}"
    assert await rest.is_server_live(base)
    assert await rest.is_server_ready(base)
    assert await rest.is_model_ready(base, model)
    async with InferenceGRPCClient(grpc) as rpc:
        assert await rpc.is_server_live()
        assert await rpc.is_server_ready()
        assert await rpc.is_model_ready(model)
        for binary in (True, False):
            tensor = InferInput("input", list(inputs.shape), "FP32")
            tensor.set_data_from_numpy(inputs, binary_data=binary)
            request = InferRequest(
                model_name=model, infer_inputs=[tensor], request_id="seven"
            )
            for response in (
                await rpc.infer(request),
                await rest.infer(base, request, model_name=model),
            ):
                assert response.id == "seven"
                got = response.outputs[0].as_numpy()
                assert np.allclose(got, outputs, atol=TOLERANCE), got


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("expected", "grpc_address", "http_address"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    expected = json.loads(Path(arguments.expected).read_text())
    asyncio.run(check(expected, arguments.grpc_address, arguments.http_address))


if __name__ == "__main__":
    main()
