"""What a good engineer writes in an afternoon for HTTP: the reference of `make bench-http`.

FastAPI on uvicorn with httptools and uvloop, bodies by orjson, tensors as numpy arrays,
and the batch thread of the gRPC reference. It answers TensorFlow Serving's path for
Predict in rows, and knows no versions, deadlines or counters. No pydantic model stands
between the body and the array: that would take several times as long. Run as
`python -m tests.benchmarks.fastapi_server`; it prints `listening on 127.0.0.1:PORT` and
ends on SIGTERM. Needs the extra `bench`.
"""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from tests.benchmarks.reference_server import BatchThread


def make_app() -> FastAPI:
    """Returns the application; to be called on the loop that serves it."""
    app = FastAPI()
    batches = BatchThread(asyncio.get_running_loop())

    @app.post("/v1/models/identity:predict")
    async def predict(request: Request) -> Response:
        document = orjson.loads(await request.body())
        rows = np.asarray(document["instances"], np.float32)
        outputs = await batches.submit(rows)
        body = orjson.dumps({"predictions": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return app


async def serve() -> None:
    """Serves until SIGTERM."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(), http="httptools", log_level="error", access_log=False
        )
    )
    print(f"listening on 127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await server.serve([listening])


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
