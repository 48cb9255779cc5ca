"""Keeps what was measured, by code digest: in memory, and in the state directory."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from tfs.core.model_profile import ModelProfile
from tfs.core.replaced_file import replace_file

log = logging.getLogger(__name__)

FOLDER: Final = "profiles"
_MAX_IN_MEMORY: Final = 4096


class ProfileCache:
    """Profiles by code digest. Thread-safe.

    With a state directory they survive a restart. A profile that cannot be read or
    written there is logged and counts as absent, because it can always be measured
    again.
    """

    def __init__(self, state_dir: str | None = None) -> None:
        self._folder = None if state_dir is None else os.path.join(state_dir, FOLDER)
        # Guards _profiles; leaf lock, no file is touched under it.
        self._lock = threading.Lock()
        self._profiles: OrderedDict[str, ModelProfile] = OrderedDict()

    def get(self, code_digest: str) -> ModelProfile | None:
        """Returns the profile of the code; None if there is none. May read a file."""
        with self._lock:
            profile = self._profiles.get(code_digest)
            if profile is not None:
                self._profiles.move_to_end(code_digest)
                return profile
        profile = self._read(code_digest)
        if profile is not None:
            self._remember(profile)
        return profile

    def put(self, profile: ModelProfile) -> None:
        """Keeps a profile in place of an earlier one. May write a file.

        Raises:
            ValueError: It has no code digest.

        """
        if not profile.code_digest:
            raise ValueError("a profile is kept by its code digest")
        self._remember(profile)
        if self._folder is None:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            replace_file(self._file(profile.code_digest), profile.to_json())
        except OSError as error:
            log.warning("event=profile_not_kept error=%s", error)

    def _remember(self, profile: ModelProfile) -> None:
        with self._lock:
            self._profiles[profile.code_digest] = profile
            self._profiles.move_to_end(profile.code_digest)
            while len(self._profiles) > _MAX_IN_MEMORY:
                self._profiles.popitem(last=False)

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
