"""What was unloaded for versions that serve not yet, and may have to come back.

A transition policy that unloads first bets on the new version. If that fails for good,
nothing serves, though what served before may still be on the disk; no source aspires
it any more, so nobody would load it. This remembers how it is loaded and shows it to the
policy, which decides. (TensorFlow Serving leaves nothing serving.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from managers.loader_harness import HarnessSnapshot, HarnessState, LoaderHarness
from managers.version_policy.action import age
from tfs.core.errors import serving_error
from tfs.core.loader import Loader
from tfs.core.servable_data import ServableData

log = logging.getLogger(__name__)

_Made = Callable[[], Loader[object]]


class StandIns:
    """For each servable, the version that was unloaded last. Confined to one step."""

    def __init__(self) -> None:
        self._gone: dict[str, tuple[HarnessSnapshot, _Made]] = {}

    def note_unload(self, harness: LoaderHarness) -> None:
        """Remembers a version that serves and is about to be unloaded.

        Of several that go at once the highest.
        """
        make, version = harness.make_another, harness.snapshot()
        if make is None or version.state is not HarnessState.READY:
            return
        before = self._gone.get(version.id.name)
        if before is None or age(before[0]) <= age(version):
            gone = replace(version, state=HarnessState.DISABLED, may_return=True)
            self._gone[version.id.name] = gone, make

    def beside(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[HarnessSnapshot]:
        """Returns what a policy is to see: the versions, and what may come back.

        It is forgotten once something aspired serves, or nothing is aspired.
        """
        if name not in self._gone:
            return versions
        aspired = [v for v in versions if v.is_aspired]
        if not aspired or any(v.state is HarnessState.READY for v in aspired):
            del self._gone[name]
            return versions
        gone, _ = self._gone[name]
        if any(v.generation == gone.generation for v in versions):
            return versions  # on its way out
        return [*versions, gone]

    def take(self, name: str, generation: int) -> ServableData[Loader[object]] | None:
        """Returns what comes back, with a loader of its own, once; None if not there."""
        gone = self._gone.get(name)
        if gone is None or gone[0].generation != generation:
            return None
        del self._gone[name]
        version, make = gone
        try:
            return ServableData(version.id, make())
        except Exception as error:
            log.warning("event=stand_in_failed servable=%s", version.id.slashed)
            wrapped = serving_error(error, f"cannot use {version.id.slashed}")
            return ServableData(version.id, None, wrapped)
