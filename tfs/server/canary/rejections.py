"""Remembers which trials a guard ended, so that a restart does not begin them again.

A canary that was rejected must not get callers again because the server was restarted.
A rejection applies to one trial only: that version under its base path, with these
fractions and limits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tfs.core.executor import Executor, InlineExecutor
from tfs.core.replaced_file import replace_file
from tfs.server.model_settings import CanarySettings

log = logging.getLogger(__name__)

_FILE_NAME: Final = "canary_rejections.json"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a guard ended a trial. Immutable.

    Attributes:
        reason: The reason, with the figures.
        since_s: The time, in seconds since the epoch.

    """

    reason: str
    since_s: float


class CanaryRejections:
    """Rejections by model, in memory and in the state directory. Thread-safe.

    Only ``read`` blocks. The executor writes the file, in the order of the changes. If
    the file cannot be read or written, that is logged, and it counts as absent; a trial
    that begins again because of that will be rejected again.

    Args:
        state_dir: Where they are kept; "" keeps them in memory only.
        executor: Writes the file; has one thread.

    """

    def __init__(self, state_dir: str = "", executor: Executor | None = None) -> None:
        self._path = os.path.join(state_dir, _FILE_NAME) if state_dir else ""
        self._executor = executor or InlineExecutor()
        # Guards _notes; leaf lock: no file is read or written under it.
        self._lock = threading.Lock()
        self._notes: dict[str, dict[str, object]] = {}

    def read(self) -> None:
        """Reads the rejections in the state directory; call it once, at the start."""
        if not self._path:
            return
        try:
            notes = json.loads(Path(self._path).read_text(encoding="utf-8"))
            if not isinstance(notes, dict):
                raise ValueError("not an object")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning(
                "event=canary_rejections_unreadable path=%s error=%s", self._path, error
            )
            return
        with self._lock:
            self._notes = {n: v for n, v in notes.items() if isinstance(v, dict)}

    def find(
        self, name: str, base_path: str, settings: CanarySettings
    ) -> Rejection | None:
        """Returns why this trial was ended; None if it was not."""
        with self._lock:
            note = self._notes.get(name, {})
        if (note.get("base_path"), note.get("canary")) != (base_path, asdict(settings)):
            return None
        reason, since_s = note.get("reason"), note.get("since_s")
        if not isinstance(reason, str) or not isinstance(since_s, int | float):
            return None
        return Rejection(reason, float(since_s)) if reason else None

    def put(
        self, name: str, base_path: str, settings: CanarySettings, rejection: Rejection
    ) -> None:
        """Remembers that a trial was ended."""
        note: dict[str, object] = {
            "base_path": base_path,
            "canary": asdict(settings),
            "reason": rejection.reason,
            "since_s": rejection.since_s,
        }
        with self._lock:
            self._notes[name] = note
        self._write_later()

    def forget(self, name: str) -> None:
        """Drops a model's rejection; harmless without one."""
        with self._lock:
            if self._notes.pop(name, None) is None:
                return
        self._write_later()

    def _write_later(self) -> None:
        if self._path:
            with contextlib.suppress(RuntimeError):  # the server is shutting down
                self._executor.submit(self._write)

    def _write(self) -> None:
        with self._lock:
            text = json.dumps(self._notes, indent=1, sort_keys=True)
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            replace_file(self._path, text + "\n", is_durable=True)
        except OSError as error:
            log.warning(
                "event=canary_rejections_not_kept path=%s error=%s", self._path, error
            )
