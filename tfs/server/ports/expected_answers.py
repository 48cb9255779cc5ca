"""Tells transports which models have long answers, before the first request.

Transports learn from the answers that models give. That is too late for the first
batch of requests: thirty answers of 10 MB would be in memory before anybody knew. Most
signatures fix how long an answer is at least.
"""

from __future__ import annotations

import threading

from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.frontends.answer_sizes import AnswerSizes


class ExpectedAnswers:
    """What the signatures of loaded versions say of their answers. Thread-safe.

    Attributes:
        sizes: Is told of each model the longest that any of its signatures fixes, for
            any version.

    """

    def __init__(self) -> None:
        self.sizes = AnswerSizes()
        # Guards _by_version, and keeps the calls of ``sizes`` in order; leaf lock.
        self._lock = threading.Lock()
        self._by_version: dict[str, dict[int, int]] = {}

    def note(self, servable: Servable) -> None:
        """Notes a version that was loaded."""
        signatures = servable.signatures.values()
        num_bytes = max((each.least_answer_bytes for each in signatures), default=0)
        version = servable.id
        with self._lock:
            self._by_version.setdefault(version.name, {})[version.version] = num_bytes
            self._tell(version.name)

    def forget(self, version: ServableId) -> None:
        """Forgets a version that is gone; one that was never noted, too."""
        with self._lock:
            versions = self._by_version.get(version.name)
            if versions is None or versions.pop(version.version, None) is None:
                return
            if not versions:
                del self._by_version[version.name]
            self._tell(version.name)

    def _tell(self, name: str) -> None:
        versions = self._by_version.get(name, {})
        self.sizes.expect(name, max(versions.values(), default=0))
