"""Keeps the last wanted state that was read on disk, for a start while the store is away."""

from __future__ import annotations

import json
import logging
import os
from typing import Final

from tfs.core.errors import DataLoss
from tfs.core.replaced_file import replace_file
from tfs.hosted.fleet import Fleet, job_row, model_row, read_job, read_model
from tfs.hosted.fleet_state import Snapshot

log = logging.getLogger(__name__)

_FORMAT: Final = 1


class FleetCopy:
    """A copy in a file. Confined to the thread that looks.

    Args:
        path: The file; its folder exists. Empty keeps no copy.

    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: Fleet | None = None

    def keep(self, snapshot: Snapshot) -> None:
        """Writes the wanted state, if it is another one; what fails is logged."""
        fleet = snapshot.fleet
        if not self._path or fleet == self._kept:
            return
        models = [
            model_row(each, fleet.placement[name])
            for name, each in fleet.models.items()
        ]
        jobs = [job_row(each) for each in fleet.jobs.values()]
        form = {
            "format": _FORMAT,
            "revision": snapshot.revision,
            "jobs": jobs,
            "models": models,
        }
        try:
            replace_file(self._path, json.dumps(form), is_durable=True)
        except OSError as error:
            log.warning("event=fleet_copy_failed path=%s problem=%s", self._path, error)
        self._kept = fleet

    def read(self) -> Snapshot | None:
        """Returns what was kept last; None, logged, if there is no copy to be read."""
        if not self._path or not os.path.exists(self._path):
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                form = json.load(file)
            if form["format"] != _FORMAT:
                raise ValueError(f"format {form['format']} is not {_FORMAT}")
            jobs = [read_job(each) for each in form["jobs"]]
            models = [read_model(each) for each in form["models"]]
            fleet = Fleet(
                {each.name: each for each in jobs},
                {each.name: each for each, _ in models},
                {each.name: placed for each, placed in models},
            )
            return Snapshot(form["revision"], fleet)
        except (OSError, ValueError, KeyError, TypeError, DataLoss) as error:
            log.warning("event=fleet_copy_unread path=%s problem=%s", self._path, error)
            return None
