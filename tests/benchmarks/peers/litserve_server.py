"""LitServe serving one model; runs in LitServe's environment.

Arguments: the model's name, the port, the greatest batch. Annotations are not deferred
here: LitServe reads them to learn what a request is.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

from tests.benchmarks.peers.workload import ServedModel

if TYPE_CHECKING:  # LitServe is in an environment of its own

    class LitAPI:
        """What LitServe calls: see its documentation."""

        def __init__(self, max_batch_size: int, batch_timeout: float) -> None: ...

    Body: Any
    LitServer: Any
    Response: Any
else:
    from fastapi import Body, Response
    from litserve import LitAPI, LitServer


class ModelApi(LitAPI):
    """Passes bytes through: the model takes and returns them."""

    def __init__(self, model_name: str, max_batch_size: int) -> None:
        super().__init__(
            max_batch_size=max_batch_size,
            batch_timeout=MIN_WAIT_S if max_batch_size > 1 else 0.0,
        )
        self._model_name = model_name
        self._is_batching = max_batch_size > 1

    def setup(self, device: str) -> None:
        self._model = ServedModel(self._model_name)

    def decode_request(
        self, request: Annotated[bytes, Body(media_type="application/octet-stream")]
    ) -> bytes:
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, data: Any) -> Any:
        """Takes one body where batching is off, else a list of them."""
        return self._model.run(data if self._is_batching else [data])

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: Any) -> Any:
        data = output if self._is_batching else output[0]
        return Response(data, media_type="application/octet-stream")


def main(model_name: str, port: str, max_batch_size: str) -> None:
    """Serves until SIGTERM."""
    server = LitServer(
        ModelApi(model_name, int(max_batch_size)),
        accelerator="cpu",
        devices=1,
        workers_per_device=1,
        timeout=False,
        fast_queue=FAST_QUEUE,
    )
    print(f"starting on {port}", flush=True)
    server.run(
        host="127.0.0.1",
        port=int(port),
        num_api_servers=1,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )


MIN_WAIT_S = 0.001  # with 0 it is busy when idle
FAST_QUEUE = True  # ZeroMQ between the processes, which costs less than their default

if __name__ == "__main__":
    main(*sys.argv[1:])
