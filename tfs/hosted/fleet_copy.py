"""A copy of a fleet's wanted state in a file, for a start without the store."""

from __future__ import annotations

import json
import logging
import os
from typing import Final

from tfs.core.errors import DataLoss
from tfs.core.system.replaced_file import replace_file
from tfs.hosted.fleet import Fleet, job_row, model_row, read_job, read_model, replaced
from tfs.hosted.snapshot import Snapshot

log = logging.getLogger(__name__)

_FORMAT: Final = 2


class FleetCopy:
    """The copy: a line about it, and one for each job and model. For the thread that looks.

    Args:
        path: The file; its folder exists. Empty keeps no copy.

    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: Fleet | None = None
        self._rows: dict[str, str] = {}  # of the models

    def keep(self, snapshot: Snapshot) -> None:
        """Writes the wanted state, if it is another one; what fails is logged."""
        before, fleet = self._kept or Fleet(), snapshot.fleet
        is_first, self._kept = self._kept is None, fleet
        if not self._path or fleet is before:
            return
        changed = {
            **replaced(before.models, fleet.models),
            **replaced(before.packing, fleet.packing),
        }
        if not changed and fleet.jobs == before.jobs and not is_first:
            return
        for name in changed:
            if name in fleet.models:
                self._rows[name] = model_row(fleet.models[name], fleet.packing[name])
            else:
                del self._rows[name]
        jobs = [job_row(each) for each in fleet.jobs.values()]
        head = {"format": _FORMAT, "revision": snapshot.revision, "jobs": len(jobs)}
        lines = [json.dumps(head), *jobs, *self._rows.values()]
        try:
            replace_file(self._path, "\n".join(lines), is_durable=True)
        except OSError as error:
            log.warning("event=fleet_copy_failed path=%s problem=%s", self._path, error)

    def read(self) -> Snapshot | None:
        """Returns what was kept last; None, logged, if there is no copy to be read."""
        if not self._path or not os.path.exists(self._path):
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                first, *rows = file.read().splitlines()
            head = json.loads(first)
            if head["format"] != _FORMAT:
                raise ValueError(f"format {head['format']} is not {_FORMAT}")
            num_jobs, revision = int(head["jobs"]), int(head["revision"])
            jobs = [read_job(each) for each in rows[:num_jobs]]
            models = [read_model(each) for each in rows[num_jobs:]]
        except (OSError, ValueError, KeyError, TypeError, DataLoss) as error:
            log.warning("event=fleet_copy_unread path=%s problem=%s", self._path, error)
            return None
        fleet = Fleet(
            {each.name: each for each in jobs},
            {each.name: each for each, _ in models},
            {each.name: placed for each, placed in models},
        )
        return Snapshot(revision, fleet)
