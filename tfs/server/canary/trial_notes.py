"""What trials leave behind: the versions that a guard rejected.

A version that was rejected must not get callers again because the server was restarted,
another trial begun or the config edited, until somebody names it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from tfs.core.executor import Executor, InlineExecutor
from tfs.core.system.replaced_file import replace_file
from tfs.proto.tfs.v1.model_config_pb2 import Canary
from tfs.server.canary.comparison import least_samples

log = logging.getLogger(__name__)

_FILE_NAME: Final = "trials.json"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a guard ended a trial. Immutable.

    Attributes:
        canary: The settings of the trial, as :func:`settings_form`.
        reason: The reason, with the figures.
        since_s: The time, in seconds since the epoch.

    """

    canary: Mapping[str, object]
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True)
class _ModelNotes:
    """The rejected versions of one model under one base path. Immutable."""

    base_path: str
    rejected: Mapping[int, Rejection] = field(default_factory=dict)


class TrialNotes:
    """Rejections, in memory and in the state directory. Thread-safe.

    Only ``read`` blocks. The executor writes the file, in the order of the changes. If
    the file cannot be read or written, that is logged, and it counts as absent.

    Args:
        state_dir: Where they are kept; "" keeps them in memory only.
        executor: Writes the file; has one thread.

    """

    def __init__(self, state_dir: str = "", executor: Executor | None = None) -> None:
        self._path = os.path.join(state_dir, _FILE_NAME) if state_dir else ""
        self._executor = executor or InlineExecutor()
        # Orders the replacements of _models, which readers take as it is; leaf: no file
        # is read or written under it.
        self._lock = threading.Lock()
        self._models: Mapping[str, _ModelNotes] = {}

    def read(self) -> None:
        """Reads the notes in the state directory; call it once, at the start."""
        if not self._path:
            return
        try:
            notes = json.loads(Path(self._path).read_text(encoding="utf-8"))
            models = {name: _read(note) for name, note in notes.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "event=trials_unreadable path=%s error=%r", self._path, str(error)
            )
            return
        with self._lock:
            self._models = models

    def find(self, name: str, base_path: str, settings: Canary) -> Rejection | None:
        """Returns why this trial, with these settings, was ended; None if it was not."""
        found = self._find(name, base_path).rejected.get(settings.version)
        is_same = found is not None and found.canary == settings_form(settings)
        return found if is_same else None

    def rejected(self, name: str, base_path: str) -> Mapping[int, str]:
        """Returns why versions were rejected, by version."""
        if name not in self._models:  # as most of ten thousand
            return {}
        rejected = self._find(name, base_path).rejected
        return {version: each.reason for version, each in rejected.items()}

    def reject(
        self, name: str, base_path: str, version: int, rejection: Rejection
    ) -> None:
        """Remembers that a trial of a version was ended."""
        with self._lock:
            notes = self._find(name, base_path)
            notes = replace(notes, rejected={**notes.rejected, version: rejection})
            self._models = {**self._models, name: notes}
        self._write_later()

    def forget(self, name: str, version: int) -> None:
        """Drops the rejection of a version; harmless without one."""
        with self._lock:
            notes = self._models.get(name)
            if notes is None or version not in notes.rejected:
                return
            left = {v: each for v, each in notes.rejected.items() if v != version}
            self._models = {**self._models, name: replace(notes, rejected=left)}
        self._write_later()

    def _find(self, name: str, base_path: str) -> _ModelNotes:
        """Returns the notes on a model; those on another base path are not its own."""
        notes = self._models.get(name)
        if notes is None or notes.base_path != base_path:
            return _ModelNotes(base_path)
        return notes

    def _write_later(self) -> None:
        if self._path:
            with contextlib.suppress(RuntimeError):  # the server is shutting down
                self._executor.submit(self._write)

    def _write(self) -> None:
        notes = {
            name: asdict(each) for name, each in self._models.items() if each.rejected
        }
        text = json.dumps(notes, indent=1, sort_keys=True)
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            replace_file(self._path, text + "\n", is_durable=True)
        except OSError as error:
            log.warning("event=trials_not_kept path=%s error=%s", self._path, error)


def settings_form(canary: Canary) -> dict[str, object]:
    """Returns what a trial's settings mean, as the file has it: with a null for what is not set."""
    guard = canary.guard
    limits = {
        field.name: getattr(guard, field.name) if guard.HasField(field.name) else None
        for field in guard.DESCRIPTOR.fields
    }
    return {
        "version": canary.version,
        "tee_fraction": canary.tee_fraction,
        "split_fraction": canary.split_fraction,
        "guard": {**limits, "min_samples": least_samples(guard)}
        if canary.HasField("guard")
        else None,
    }


def _read(note: dict[str, object]) -> _ModelNotes:
    """Reads the notes on one model; raises an error of any kind if they are damaged."""
    rejected = note["rejected"]
    if not isinstance(rejected, dict):
        raise TypeError("not what this server writes")
    return _ModelNotes(
        str(note["base_path"]),
        {
            int(version): Rejection(
                dict(each["canary"]), str(each["reason"]), float(each["since_s"])
            )
            for version, each in rejected.items()
        },
    )
