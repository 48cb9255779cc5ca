"""The model as TorchServe's worker loads it: the archive's handler.

TorchServe calls the module's `handle` with a batch of requests, first with none.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.peers.workload import ServedModel

_models: dict[str, ServedModel] = {}


def handle(data: Any, context: Any) -> list[bytes] | None:
    """Returns the output's bytes of each request."""
    name = context.model_name
    if name not in _models:
        _models[name] = ServedModel(name)
    if not data:
        return None
    # "body" by HTTP, the input's own name by gRPC.
    return _models[name].run(
        [bytes(request.get("body") or request["x"]) for request in data]
    )
