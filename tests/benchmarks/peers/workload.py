"""What every server serves: three models, and how a peer's handler runs one.

Imported by the benchmark and, inside each peer's environment, by that peer's handler:
torch, numpy and the models only. Weights come from a seed, so the same torch makes the
same model everywhere; the replies are compared all the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tests.benchmarks.models.identity import Identity
from tests.benchmarks.models.mlp import Mlp
from tests.benchmarks.models.resnet18 import ResNet18

SEED = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and the requests for it.

    Attributes:
        name: what the servers call it.
        make: the model's class.
        row_shape: of one row of the input; a request has one row.
        max_batch_size: rows that a batching server may join.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    row_shape: tuple[int, ...]
    max_batch_size: int

    def build(self) -> torch.nn.Module:
        """Returns the model, the same one wherever the same torch runs."""
        torch.manual_seed(SEED)
        return self.make().eval()


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("identity", Identity, (4,), 64),
        Workload("mlp", Mlp, (64,), 64),
        # On one core a batch of eight is as good as any larger one.
        Workload("resnet18", ResNet18, (3, 224, 224), 8),
    )
}


class ServedModel:
    """A model that takes and returns the bytes of float32 rows, on one thread.

    It is what all peers' handlers share, and as quick as numpy allows: one join, one
    call, one copy out per batch.
    """

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        # Requests lie in immutable bytes, and no model here writes to its input.
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer)")
        workload = WORKLOADS[name]
        self._row_shape = workload.row_shape
        self._model = workload.build()

    def run(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Returns the output's bytes of each body; all are one batch."""
        joined = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        rows = self.run_rows(np.frombuffer(joined, np.float32)).tobytes()
        size = len(rows) // len(bodies)
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def run_rows(
        self, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Returns the model's output for rows that lie one after the other."""
        rows = torch.from_numpy(values.reshape(-1, *self._row_shape))
        with torch.inference_mode():
            output = self._model(rows)
        if isinstance(output, dict):
            (output,) = output.values()
        result: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = output.numpy()
        return result
