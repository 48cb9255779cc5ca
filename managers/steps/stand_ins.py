"""Versions that were unloaded for newer ones, and may come back if those fail.

A transition policy that unloads first bets on the new version. If that fails for good,
nothing serves, although the old version may still be on disk: no source aspires it any
more, so nobody would load it. This remembers how to load the old version and shows it
to the policy, which decides. (TensorFlow Serving leaves nothing serving.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from managers.version_policy.action import Action
from managers.versions.harness_snapshot import HarnessSnapshot
from managers.versions.harness_state import HarnessState
from managers.versions.version import Version
from tfs.core.errors import serving_error
from tfs.core.loader import Loader
from tfs.core.servable_data import ServableData

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Gone:
    """A version that was unloaded.

    Attributes:
        version: The version as policies see it.
        make: Makes another loader of it.
        gone_for: The newest generation that was aspired when it went.
        tried_for: The newest generation that was aspired when it was last brought back.
            If that attempt failed, it is not repeated before another generation has
            failed.

    """

    version: HarnessSnapshot
    make: Callable[[], Loader[object]]
    gone_for: int
    tried_for: int = -1


class StandIns:
    """For each servable, the versions that were unloaded last. Confined to one step."""

    def __init__(self) -> None:
        self._gone: dict[str, list[_Gone]] = {}
        # The newest generation that is aspired of each servable that has one.
        self._newest: dict[str, int] = {}

    def note_unload(self, going: Version) -> None:
        """Remembers a version that serves and is about to be unloaded.

        Versions that were unloaded for the same generation are kept too; all others are
        forgotten.
        """
        make, version = going.make_another, going.snapshot()
        if make is None or version.state is not HarnessState.READY:
            return
        name = version.id.name
        gone_for = self._newest.get(name, -1)
        gone = replace(version, state=HarnessState.DISABLED, may_return=True)
        beside = [
            each
            for each in self._gone.get(name, ())
            if each.gone_for == gone_for and each.version.id != version.id
        ]
        self._gone[name] = [*beside, _Gone(gone, make, gone_for)]

    def has_any(self, name: str) -> bool:
        """Whether any version of a servable may come back. Any thread."""
        return bool(self._gone.get(name))

    def beside(
        self, name: str, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[HarnessSnapshot]:
        """Returns what a policy decides on: the versions, and those that may come back.

        Those that may come back are forgotten once every aspired version serves, or
        none is aspired.
        """
        newest = _newest_aspired(versions)
        if newest < 0:
            self._newest.pop(name, None)
        else:
            self._newest[name] = newest
        if name not in self._gone:
            return versions
        if all(v.state is HarnessState.READY for v in versions if v.is_aspired):
            del self._gone[name]
            return versions
        present = {v.generation for v in versions}
        return [
            *versions,
            *(
                each.version
                for each in self._gone[name]
                if each.version.generation not in present and newest > each.tried_for
            ),
        ]

    def take(
        self, action: Action, versions: Sequence[HarnessSnapshot]
    ) -> ServableData[Loader[object]] | None:
        """Returns the version that an action loads, with a new loader; None if unknown.

        Args:
            action: The action that loads it.
            versions: All versions of the servable.

        """
        for gone in self._gone.get(action.id.name, ()):
            if gone.version.generation == action.generation:
                return self._come_back(gone, versions)
        return None

    def _come_back(
        self, gone: _Gone, versions: Sequence[HarnessSnapshot]
    ) -> ServableData[Loader[object]]:
        gone.tried_for = _newest_aspired(versions)
        servable_id = gone.version.id
        try:
            return ServableData(servable_id, gone.make())
        except Exception as error:
            log.warning("event=stand_in_failed servable=%s", servable_id.slashed)
            wrapped = serving_error(error, f"cannot use {servable_id.slashed}")
            return ServableData(servable_id, None, wrapped)


def _newest_aspired(versions: Sequence[HarnessSnapshot]) -> int:
    return max((v.generation for v in versions if v.is_aspired), default=-1)
