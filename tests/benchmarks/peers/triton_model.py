"""The model as Triton's Python backend loads it: `model.py` of a model's version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.peers.workload import ServedModel

if TYPE_CHECKING:  # the backend's own module, which lies beside it
    pb_utils: Any
else:
    import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What the backend calls; the class has to have this name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Takes what the configuration says; the model goes by its name."""
        self._model = ServedModel(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs all requests as one batch; returns a response for each."""
        inputs = [
            pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            for request in requests
        ]
        rows = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        outputs = np.split(self._model.run_rows(rows), len(inputs))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", output)])
            for output in outputs
        ]
