"""What was measured, by code digest: kept, provisional, or one version's turn to measure.

A profile that was measured on a quiet host is kept, in memory and in the state directory.

One that was measured while others kept the processors busy is *provisional*: it is used
for the next versions of the same code too, in memory only. A server under load that gets a
new version every minute would otherwise measure each of them, find the host busy again
(with serving), and take half a second of every processor away from its callers each time.
So such code is measured again only after a pause, which doubles each time, and only if
others left the processors alone while the version was loaded.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.replaced_file import replace_file
from tfs.core.system.processor_share import num_processors
from tfs.core.version.model_profile import ModelProfile
from tfs.servables.measuring.host_load import CpuSample, foreign_share, sample_cpu

log = logging.getLogger(__name__)

FOLDER: Final = "profiles"
FIRST_PAUSE_S: Final = 60.0
LAST_PAUSE_S: Final = 960.0
MAX_FOREIGN_SHARE: Final = 0.15
"""Share of all processors used by others above which measured times are not kept."""
MAX_TURNS: Final = 2
"""Versions of one code that others of it wait for. If both end without a profile, because
they fail or hang, the others do not wait any more."""
_MAX_IN_MEMORY: Final = 4096


@dataclass(slots=True)
class _Entry:
    """A profile in memory; what follows it is of a provisional one."""

    profile: ModelProfile
    pause_s: float = 0.0
    due_s: float = 0.0
    seen_s: float = 0.0
    seen: CpuSample | None = None


class Profiles:
    """Profiles by code digest. Thread-safe.

    With a state directory they survive a restart. A profile that cannot be read or
    written there is logged and counts as absent, because it can always be measured
    again.

    Args:
        state_dir: Where profiles are kept; None keeps them in memory.
        clock: Tells the time.
        num_turns: How many versions of different codes may have their turn at once; None
            is one for each processor.
        sample: Reads the processor time used so far, given the ids of our processes.

    """

    def __init__(
        self,
        state_dir: str | None = None,
        clock: Clock | None = None,
        *,
        num_turns: int | None = None,
        sample: Callable[[Sequence[int]], CpuSample] = sample_cpu,
    ) -> None:
        self._folder = None if state_dir is None else os.path.join(state_dir, FOLDER)
        self._clock = clock or MonotonicClock()
        self._sample = sample
        # Guards the fields below and what is in them; leaf, no file is touched under it.
        self._changed = threading.Condition()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._left = num_processors() if num_turns is None else num_turns
        self._busy: set[str] = set()
        self._num_taken: Counter[str] = Counter()

    def get(self, code_digest: str) -> ModelProfile | None:
        """Returns the kept or provisional profile of some code; None if there is none.

        To be asked before a version is loaded. May read a file.
        """
        now_s = self._clock.now()
        with self._changed:
            entry = self._entries.get(code_digest)
            if entry is not None:
                self._entries.move_to_end(code_digest)
        if entry is None:
            profile = self._read(code_digest)
            if profile is not None:
                self._remember(_Entry(profile))
            return profile
        if entry.pause_s and now_s >= entry.due_s:
            seen = self._sample([os.getpid()])
            with self._changed:
                entry.seen, entry.seen_s = seen, now_s
        return entry.profile

    def needs_measuring(self, code_digest: str, pid: int) -> bool:
        """Whether measuring a loaded version now is likely to be worth it.

        It is if nothing is known of its code. It is also if there is a provisional profile,
        the pause is over and, since ``get``, others left the processors alone. If they did
        not, another pause begins.

        Args:
            code_digest: Code digest of the version.
            pid: The process that it was loaded in.

        """
        now_s = self._clock.now()
        with self._changed:
            entry = self._entries.get(code_digest)
            if entry is None:
                return True
            if not entry.pause_s or now_s < entry.due_s or entry.seen is None:
                return False
            seen, seen_s = entry.seen, entry.seen_s
        after = self._sample([os.getpid(), pid])
        if foreign_share(seen, after, now_s - seen_s) <= MAX_FOREIGN_SHARE:
            return True
        with self._changed:
            entry.due_s, entry.seen = now_s + entry.pause_s, None
        return False

    def put(self, profile: ModelProfile, *, is_quiet: bool = True) -> None:
        """Keeps a profile in place of an earlier one. May write a file.

        Args:
            profile: What was measured.
            is_quiet: Whether others left the processors alone meanwhile; if not, the
                profile is provisional.

        Raises:
            ValueError: It has no code digest.

        """
        digest = profile.code_digest
        if not digest:
            raise ValueError("a profile is kept by its code digest")
        if not is_quiet:
            with self._changed:
                before = self._entries.get(digest, _Entry(profile)).pause_s
            pause_s = min(2 * before, LAST_PAUSE_S) if before else FIRST_PAUSE_S
            self._remember(_Entry(profile, pause_s, self._clock.now() + pause_s))
            return
        self._remember(_Entry(profile))
        if self._folder is None:
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
        if known is not None or self.num_taken(code_digest) >= MAX_TURNS:
            yield known
            return
        with self._changed:
            while code_digest in self._busy or not self._left:
                self._changed.wait()
            self._busy.add(code_digest)
            self._left -= 1
            self._num_taken[code_digest] += 1
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

    def num_taken(self, code_digest: str) -> int:
        """Returns how many versions of some unknown code have, or had, their turn."""
        with self._changed:
            return self._num_taken[code_digest]

    def _remember(self, entry: _Entry) -> None:
        digest = entry.profile.code_digest
        with self._changed:
            self._entries[digest] = entry
            self._entries.move_to_end(digest)
            while len(self._entries) > _MAX_IN_MEMORY:
                self._entries.popitem(last=False)

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
