"""Keeps the fleet's wanted state: one SQLite file, changed in transactions.

(The paper's Controller "keeps all its state in Spanner and manages it transactionally".)
Several processes may use a store: commands change it, routers follow it. Each change is a
revision, kept with why it was made.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.hosted.fleet import Fleet

_BUSY_S: Final = 10.0
_MAX_REVISIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Revision:
    """The state at one moment.

    Attributes:
        number: Counts changes; 0 before the first.
        fleet: The wanted state.
        why: What made the change.
        at_s: The time of the change, in seconds since the epoch.

    """

    number: int
    fleet: Fleet
    why: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelSighting:
    """How a model fared when a synchronizer last asked.

    Attributes:
        num_answering: How many jobs answer for it.
        problem: What is wrong with it on jobs that do not; empty if nothing is.

    """

    num_answering: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sightings:
    """What a synchronizer last saw. It is no part of the wanted state.

    Attributes:
        models: How each model fared.
        at_s: When that was noted, in seconds since the epoch; 0 if never.

    """

    models: Mapping[str, ModelSighting] = field(default_factory=dict)
    at_s: float = 0.0


class FleetStore:
    """The wanted state in a file. Thread-safe: every call opens the file anew.

    Args:
        path: The file, made at the first change; its folder exists, on a local disk.
        clock: Dates revisions.

    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or MonotonicClock()

    def read(self) -> Revision:
        """Returns the latest revision.

        Raises:
            FailedPrecondition: The file cannot be used.
            DataLoss: It contains something else.

        """
        with self._open() as connection:
            return _latest(connection)

    def change(self, why: str, edit: Callable[[Fleet], Fleet]) -> Revision:
        """Replaces the state by what ``edit`` makes of it; returns the resulting revision.

        Nobody else changes it meanwhile. If ``edit`` raises, the state stays as it is.
        A result that equals the state before is not a new revision.

        Raises:
            FailedPrecondition: The file cannot be used.
            DataLoss: It contains something else.

        """
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            before = _latest(connection)
            fleet = edit(before.fleet)
            if fleet == before.fleet:
                return before
            after = Revision(before.number + 1, fleet, why, self._clock.wall_s())
            connection.execute(
                "INSERT INTO revisions VALUES (?, ?, ?, ?)",
                (after.number, after.at_s, why, fleet.to_json()),
            )
            connection.execute(
                "DELETE FROM revisions WHERE number <= ?",
                (after.number - _MAX_REVISIONS,),
            )
            connection.execute("COMMIT")
            return after

    def history(self, most: int) -> list[Revision]:
        """Returns the last revisions, newest first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT number, state, why, at_s FROM revisions "
                "ORDER BY number DESC LIMIT ?",
                (most,),
            )
            return [Revision(n, Fleet.from_json(s), w, a) for n, s, w, a in rows]

    def note_sightings(self, models: Mapping[str, ModelSighting]) -> None:
        """Notes how models fare, in place of what was noted before.

        Raises:
            FailedPrecondition: The file cannot be used.

        """
        seen = {
            name: [each.num_answering, each.problem] for name, each in models.items()
        }
        with self._open() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO sightings VALUES (1, ?, ?)",
                (self._clock.wall_s(), json.dumps(seen)),
            )

    def sightings(self) -> Sightings:
        """Returns what was noted last.

        Raises:
            FailedPrecondition: The file cannot be used.

        """
        with self._open() as connection:
            row = connection.execute("SELECT at_s, seen FROM sightings").fetchone()
        if row is None:
            return Sightings()
        models = {
            name: ModelSighting(*each) for name, each in json.loads(row[1]).items()
        }
        return Sightings(models, row[0])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS revisions (number INTEGER PRIMARY KEY, "
                "at_s REAL, why TEXT, state TEXT)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS sightings (only INTEGER PRIMARY KEY, "
                "at_s REAL, seen TEXT)"
            )
            yield connection
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        finally:
            connection.close()  # rolls back what was not committed

    def _unusable(self, error: sqlite3.Error) -> FailedPrecondition:
        why, folder = str(error), os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            why = f"there is no folder {folder}; make it first"
        return FailedPrecondition(f"the fleet's store {self.path}: {why}")


def _latest(connection: sqlite3.Connection) -> Revision:
    row = connection.execute(
        "SELECT number, state, why, at_s FROM revisions ORDER BY number DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return Revision(0, Fleet())
    return Revision(row[0], Fleet.from_json(row[1]), row[2], row[3])
