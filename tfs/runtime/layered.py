"""Batches a part of a model layer by layer: calls join a batch that is being computed.

    from tfs.runtime.layered import layered

    class Servable:
        concurrency = 16

        def load(self, version):
            self.net = layered(build(version.weights), max_batch_size=32)
            self.net.measure(torch.rand(1, 3, 224, 224))

        def predict(self, images):
            return {"scores": self.net(images)}

This is worth it if the last layers cost nearly the same for one row as for many, like
the wide linear layers after the convolutions of an AlexNet or a VGG. For other models
it does what ``tfs.runtime.batched`` does, and checks the queue between layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.runtime.batched import BatchedPart
from tfs.runtime.guest.layered.stages import Stage


def layered(
    layers: Iterable[Stage],
    *,
    max_batch_size: int,
    timeout_s: float = 0.0,
    max_waiting_rows: int | None = None,
    clock: Clock | None = None,
) -> BatchedPart:
    """Returns layers as one function, computed for concurrent calls together.

    This is like ``batched`` of all of them. In addition, a call that comes while a
    batch is computed may join it between two layers: its first layers are computed
    while the others wait, and from there on all go together. It joins if that is
    predicted to save time altogether, and makes nobody miss a deadline. Layers are
    measured while they serve, or before that by ``measure``.

    Args:
        layers: Functions or modules, an ``nn.Sequential`` for instance. The first takes
            the call's arguments, each other one what the one before it returned. Rows
            must not depend on each other in any of them.
        max_batch_size: Most rows at once.
        timeout_s: Longest that a call waits for others before a batch begins.
        max_waiting_rows: Calls beyond so many waiting rows fail with UNAVAILABLE; None:
            ten batches.
        clock: Measures time; tests pass their own.

    Raises:
        InvalidArgument: There is no layer, or the sizes do not fit together.

    """
    chain = tuple(layers)
    if not chain:
        raise InvalidArgument("a layered part needs layers")
    options = BatchQueueOptions(
        name=type(layers).__name__,
        max_batch_rows=max_batch_size,
        max_rows=max_waiting_rows,
        timeout_s=timeout_s,
        low=None,
    )
    return BatchedPart(partial(_through, chain), options, clock, chain)


def _through(layers: Sequence[Stage], *args: Any, **kwargs: Any) -> Any:
    value = layers[0](*args, **kwargs)
    for layer in layers[1:]:
        value = layer(value)
    return value
