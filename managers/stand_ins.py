"""What was unloaded for versions that serve not yet, and may have to come back.

A transition policy that unloads first bets on the new version. If that fails for good,
nothing serves, though what served before may still be on the disk; no source aspires
it any more, so nobody would load it. This remembers how it is loaded and shows it to the
policy, which decides. (TensorFlow Serving leaves nothing serving.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState
from managers.loader_harness import LoaderHarness
from managers.version_policy.action import Action, age
from tfs.core.errors import serving_error
from tfs.core.loader import Loader
from tfs.core.servable_data import ServableData

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Gone:
    """A version that was unloaded.

    Attributes:
        version: As policies are to see it.
        make: Makes another loader of it.
        tried_for: The newest generation that had failed when it last came back; that
            it could not is no reason to try again before another has failed.

    """

    version: HarnessSnapshot
    make: Callable[[], Loader[object]]
    tried_for: int = -1


class StandIns:
    """For each servable, the version that was unloaded last. Confined to one step."""

    def __init__(self) -> None:
        self._gone: dict[str, _Gone] = {}

    def note_unload(self, harness: LoaderHarness) -> None:
        """Remembers a version that serves and is about to be unloaded.

        Of several that go at once the highest.
        """
        make, version = harness.make_another, harness.snapshot()
        if make is None or version.state is not HarnessState.READY:
            return
        name, before = version.id.name, self._gone.get(version.id.name)
        if before is None or age(before.version) <= age(version):
            gone = replace(version, state=HarnessState.DISABLED, may_return=True)
            self._gone[name] = _Gone(gone, make)

    def beside(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[HarnessSnapshot]:
        """Returns what a policy is to see: the versions, and what may come back.

        It is forgotten once something aspired serves, or nothing is aspired.
        """
        gone = self._gone.get(name)
        if gone is None:
            return versions
        aspired = [v for v in versions if v.is_aspired]
        if not aspired or any(v.state is HarnessState.READY for v in aspired):
            del self._gone[name]
            return versions
        is_on_its_way = any(v.generation == gone.version.generation for v in versions)
        if is_on_its_way or _newest(aspired) <= gone.tried_for:
            return versions
        return [*versions, gone.version]

    def take(
        self, action: Action, versions: Sequence[HarnessSnapshot]
    ) -> ServableData[Loader[object]] | None:
        """Returns what comes back, with a loader of its own; None if it is not there.

        Args:
            action: Loads it.
            versions: Of its servable.

        """
        gone = self._gone.get(action.id.name)
        if gone is None or gone.version.generation != action.generation:
            return None
        gone.tried_for = _newest([v for v in versions if v.is_aspired])
        servable_id = gone.version.id
        try:
            return ServableData(servable_id, gone.make())
        except Exception as error:
            log.warning("event=stand_in_failed servable=%s", servable_id.slashed)
            wrapped = serving_error(error, f"cannot use {servable_id.slashed}")
            return ServableData(servable_id, None, wrapped)


def _newest(versions: Sequence[HarnessSnapshot]) -> int:
    return max((v.generation for v in versions), default=-1)
