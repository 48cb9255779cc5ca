"""Re-reads the config file when it changes.

It is polled and not watched: editors, ConfigMap mounts and network file systems replace
the file in ways that events miss, and reading it once a second costs next to nothing. The
bytes decide, not the time stamp.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock, join_by
from tfs.core.errors import FailedPrecondition, InvalidArgument

log = logging.getLogger(__name__)

_MAX_CONFIG_BYTES: Final = 64 << 20
_LONGEST_CLOSE_S: Final = 5.0


def read_config_file(path: str, message: str = "ModelServerConfig") -> str:
    """Returns the file's text, without the byte order mark that some editors add.

    Args:
        path: The file.
        message: What it should contain, for error messages.

    Raises:
        FailedPrecondition: It cannot be read; says why.
        InvalidArgument: It is not text, or absurdly large.

    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise FailedPrecondition(
            f"Failed to read {message} file: {path}: {error.strerror}"
        ) from error
    if len(content) > _MAX_CONFIG_BYTES:
        raise InvalidArgument(f"config file {path} is larger than 64 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"config file {path} is not UTF-8 text") from error


def look_at_config_file(path: str) -> None:
    """Checks that a file can be read again and again.

    Raises:
        FailedPrecondition: It is not a regular file; opening a pipe could block for
            ever.
        OSError: It does not exist, or may not be looked at.

    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FailedPrecondition(f"{path} is not a regular file")


class ConfigFileWatch:
    """Calls ``apply(text)`` with each new content of a file. Thread-safe.

    ``apply`` runs on the watch's thread and does not raise; a file that cannot be
    read is logged once and looked at again. ``poll`` is public so that tests need
    no thread.

    Args:
        path: The file.
        applied_text: The content when the server started.
        apply: Takes each new content.
        clock: Measures the pauses.
        poll_wait_s: How long the pauses are.
        on_problem: Takes the reason why the file cannot be read, and "" when it can
            again; runs on the watch's thread, and does not raise.

    """

    def __init__(
        self,
        path: str,
        applied_text: str,
        apply: Callable[[str], None],
        clock: Clock,
        poll_wait_s: float,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._text = applied_text
        self._apply = apply
        self._clock = clock
        self._poll_wait_s = poll_wait_s
        self._on_problem = on_problem
        self._problem = ""
        # Guards _closed and _is_asked; wakes the thread. Nothing is called under it.
        self._changed = threading.Condition()
        self._closed = False
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to look, on a daemon thread."""
        self._thread = threading.Thread(
            target=self._run, name="config-file", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops looking and ends the thread; idempotent.

        Waits for a look in progress, but no more than five seconds, because a dead
        network mount must not keep the server from ending.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            deadline_s = self._clock.now() + _LONGEST_CLOSE_S
            if not join_by(thread, deadline_s, self._clock):
                log.warning("event=config_file_hangs path=%s", self._path)

    def look_soon(self) -> None:
        """Makes the thread look now; returns at once."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()

    def poll(self) -> bool:
        """Looks once; returns whether a new content was handed to ``apply``."""
        text, problem = self._text, ""
        try:
            look_at_config_file(self._path)
            text = read_config_file(self._path)
        except OSError as error:
            problem = f"{self._path}: {error.strerror}"
        except (FailedPrecondition, InvalidArgument) as error:
            problem = error.message
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)
            if problem:
                log.error("event=config_file_unreadable problem=%s", problem)
        if text == self._text:
            return False
        self._text = text
        self._apply(text)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                due_s = self._clock.now() + self._poll_wait_s
                while not (
                    self._closed or self._is_asked or self._clock.now() >= due_s
                ):
                    self._clock.wait(self._changed, due_s)
                if self._closed:
                    return
                self._is_asked = False
            try:
                self.poll()
            except Exception:
                log.exception("event=config_file_watch_failed path=%s", self._path)
