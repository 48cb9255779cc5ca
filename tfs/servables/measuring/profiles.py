"""What was measured, by code digest, and one version's turn to measure some code.

A profile that was measured on a quiet host is kept in the state directory, too. One that
was measured while others kept the processors busy is used for further versions of the same
code until the server ends.

While nothing is known of some code, its versions are loaded one after the other. A thousand
versions of ten codes would otherwise be loaded in a thousand processes: none of them is
known when its load begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tfs.core.replaced_file import replace_file
from tfs.core.system.processor_share import num_processors
from tfs.core.version.model_profile import ModelProfile

log = logging.getLogger(__name__)

FOLDER: Final = "profiles"
_MAX_TURNS: Final = 2
"""Versions of one code that others of it wait for. If both end without a profile, because
they fail or hang, the others do not wait any more."""
_MAX_IN_MEMORY: Final = 4096


class Profiles:
    """Profiles by code digest. Thread-safe.

    With a state directory they survive a restart. A profile that cannot be read or
    written there is logged and counts as absent, because it can always be measured
    again.

    Args:
        state_dir: Where profiles are kept; None keeps them in memory.
        num_turns: How many versions of different codes may have their turn at once; None
            is one for each processor.

    """

    def __init__(
        self, state_dir: str | None = None, *, num_turns: int | None = None
    ) -> None:
        self._folder = None if state_dir is None else os.path.join(state_dir, FOLDER)
        # Guards the fields below; leaf, no file is touched under it.
        self._changed = threading.Condition()
        self._in_memory: OrderedDict[str, ModelProfile] = OrderedDict()
        self._left = num_processors() if num_turns is None else num_turns
        self._busy: set[str] = set()
        self._num_taken: Counter[str] = Counter()

    def get(self, code_digest: str) -> ModelProfile | None:
        """Returns the profile of some code; None if there is none. May read a file."""
        with self._changed:
            profile = self._in_memory.get(code_digest)
            if profile is not None:
                self._in_memory.move_to_end(code_digest)
        if profile is None:
            profile = self._read(code_digest)
            if profile is not None:
                self._remember(profile)
        return profile

    def put(self, profile: ModelProfile, *, is_quiet: bool = True) -> None:
        """Keeps a profile in place of an earlier one. May write a file.

        Args:
            profile: What was measured.
            is_quiet: Whether others left the processors alone meanwhile; if not, nothing
                is written.

        Raises:
            ValueError: It has no code digest.

        """
        digest = profile.code_digest
        if not digest:
            raise ValueError("a profile is kept by its code digest")
        self._remember(profile)
        if self._folder is None or not is_quiet:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            replace_file(self._file(digest), profile.to_json())
        except OSError as error:
            log.warning("event=profile_not_kept error=%s", error)

    @contextlib.contextmanager
    def turn(self, code_digest: str) -> Iterator[ModelProfile | None]:
        """Yields the known profile of some code, to be used while a version is loaded.

        If there is none, versions of that code are loaded one after the other, so that
        most of them find the profile of one that was measured. Blocks meanwhile.
        """
        known = self.get(code_digest)
        with self._changed:
            if known is None and self._num_taken[code_digest] < _MAX_TURNS:
                while code_digest in self._busy or not self._left:
                    self._changed.wait()
                self._busy.add(code_digest)
                self._left -= 1
                self._num_taken[code_digest] += 1
                is_taken = True
            else:
                is_taken = False
        if not is_taken:
            yield known
            return
        try:
            known = self.get(code_digest)
            if known is not None:
                with self._changed:
                    del self._num_taken[code_digest]
            yield known
        finally:
            with self._changed:
                self._busy.discard(code_digest)
                self._left += 1
                self._changed.notify_all()

    def _remember(self, profile: ModelProfile) -> None:
        digest = profile.code_digest
        with self._changed:
            self._in_memory[digest] = profile
            self._in_memory.move_to_end(digest)
            while len(self._in_memory) > _MAX_IN_MEMORY:
                self._in_memory.popitem(last=False)

    def _read(self, code_digest: str) -> ModelProfile | None:
        if self._folder is None:
            return None
        try:
            text = Path(self._file(code_digest)).read_text(encoding="utf-8")
            profile = ModelProfile.from_json(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "event=profile_unreadable digest=%s error=%s", code_digest, error
            )
            return None
        return profile if profile.code_digest == code_digest else None

    def _file(self, code_digest: str) -> str:
        return os.path.join(self._folder or "", f"{code_digest}.json")
