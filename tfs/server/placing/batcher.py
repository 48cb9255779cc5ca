"""Puts batch queues in front of versions, as their operator and they themselves ask.

Parameters come from ``--batching_parameters_file`` for all models, and from
``batching_params.pbtxt`` in a version directory for that version; the version's own take
precedence. Without either, a signature is batched as its measurements recommend.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from batching.batching_options import BatchingOptions, SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import Servable
from tfs.core.stats import Stats
from tfs.core.version.model_profile import ModelProfile
from tfs.core.version_directory import BATCHING_PARAMETERS
from tfs.runtime.placement import Backend
from tfs.servables.joining.batched import BatchedServable
from tfs.server.placing.batching_parameters import read_batching_file

_UNBOUNDED: Final = 1 << 16


class Batcher:
    """Puts batch queues in front of servables. ``batch`` is thread-safe.

    There is one scheduler per backend. The serving loop steps it at the end of every
    round, so that everything a round brought can be joined. Models share the threads of
    the server, but each process belongs to one version. There the queues are bounded
    one by one, so that a model that hangs holds up no other.

    Args:
        loop: The serving loop; it does not run yet.
        enabled: Whether anything is batched.
        trusts_versions: Whether a version with parameters of its own is batched even if
            nothing was measured (because there is no probe budget).
        common: Parameters of versions without their own.
        num_parallel: Batches in flight, by backend; for processes, per version.
        stats: Where versions publish their batching statistics while they are loaded.

    """

    def __init__(
        self,
        loop: ServingLoop,
        *,
        enabled: bool,
        trusts_versions: bool,
        common: BatchingOptions | None,
        num_parallel: Mapping[Backend, int],
        stats: Stats | None = None,
    ) -> None:
        self._loop = loop
        self._enabled = enabled
        self._trusts_versions = trusts_versions
        self._common = common
        self._stats = stats
        self._max_in_flight = {Backend.PROCESS: num_parallel[Backend.PROCESS]}
        bounds = {**num_parallel, Backend.PROCESS: _UNBOUNDED}
        self._schedulers = {
            backend: SharedBatchScheduler(
                SchedulerOptions(num_batch_threads=num, serial=num == 1), loop.clock
            )
            for backend, num in bounds.items()
        }
        self._stepped: set[Backend] = set()  # only used on the loop

    def batch(
        self,
        servable: Servable,
        path: str,
        profile: ModelProfile | None,
        backend: Backend,
    ) -> Servable:
        """Returns the servable with queues in front, or unchanged if nothing is batched.

        Raises:
            InvalidArgument: The version's own parameters are wrong.

        """
        if not self._enabled:
            return servable
        own = os.path.join(path, BATCHING_PARAMETERS)
        options = self._common
        if os.path.isfile(own):
            options = replace(
                read_batching_file(own), batches_unproven=self._trusts_versions
            )
        # Posted before any task of the servable.
        self._loop.post(partial(self._begin, backend))
        return BatchedServable(
            servable,
            self._schedulers[backend],
            self._loop,
            options,
            profile,
            self._stats,
            max_in_flight=self._max_in_flight.get(backend),
        )

    def _begin(self, backend: Backend) -> None:
        """Has a scheduler stepped once it has a first version: most are never used."""
        if backend not in self._stepped:
            self._stepped.add(backend)
            self._loop.add_round_hook(self._schedulers[backend].step, Phase.SCHEDULE)
