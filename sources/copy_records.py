"""Which remote version each local copy was made of, remembered across restarts.

    <folder>/<SHA-256 of the URL>.json    {"url": ..., "fingerprint": ..., "key": ...}

With these records a copy can be found while its store does not answer. They only save
work: if one is lost or cannot be written, the store is looked at once more. When a
store no longer shows a version, its record is not kept for the next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfs.core.replaced_file import replace_file

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What a copy was made of. Immutable.

    Attributes:
        url: URL of the remote version.
        fingerprint: What the version looked like when it was copied.
        key: Name of the copy.

    """

    url: str
    fingerprint: str
    key: str


class CopyRecords:
    """The records of one cache, one per URL. Thread-safe.

    Args:
        folder: Where they are kept; it has to exist before ``read``.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Guards the fields below and the removal of files. Ranks after LocalCopies;
        # a leaf otherwise.
        self._lock = threading.Lock()
        self._records: dict[str, CopyRecord] = {}  # by URL
        self._passing: set[str] = set()  # URLs of the records without a file

    def read(self, has_copy: Callable[[str], bool]) -> None:
        """Reads the records, and removes those that are damaged or have no copy.

        Args:
            has_copy: Tells whether the copy with a key exists.

        """
        records = {}
        for path in self._folder.glob("*.json"):
            record = _read(path)
            if record is not None and has_copy(record.key):
                records[record.url] = record
            else:
                path.unlink(missing_ok=True)
        with self._lock:
            self._records = records

    def find(self, url: str) -> CopyRecord | None:
        """Returns the record of the last copy made from a URL; None without one."""
        with self._lock:
            return self._records.get(url)

    def below(self, prefix: str) -> Sequence[CopyRecord]:
        """Returns the records whose URLs begin with ``prefix``."""
        with self._lock:
            return [r for r in self._records.values() if r.url.startswith(prefix)]

    def add(self, record: CopyRecord) -> None:
        """Remembers a record, in place of an earlier one for its URL.

        Nothing is written if the two are equal. A failure to write is logged, not
        raised.
        """
        with self._lock:
            if self._records.get(record.url) == record:
                return
            self._records[record.url] = record
            self._passing.discard(record.url)
        self._write(record)

    def set_lasting(self, url: str, *, lasting: bool) -> None:
        """Sets whether a record outlives this process; a new one does.

        A failure to write is logged, not raised.
        """
        with self._lock:
            record = self._records.get(url)
            if record is None or lasting is not (url in self._passing):
                return
            if lasting:
                self._passing.remove(url)
            else:
                self._passing.add(url)
                try:
                    self._path_of(url).unlink(missing_ok=True)
                except OSError as error:
                    log.warning("event=copy_remembered url=%s why=%s", url, error)
        if lasting:
            self._write(record)

    def _write(self, record: CopyRecord) -> None:
        form = {"url": record.url, "fingerprint": record.fingerprint, "key": record.key}
        try:
            replace_file(str(self._path_of(record.url)), json.dumps(form))
        except OSError as error:
            log.warning("event=copy_not_remembered url=%s why=%s", record.url, error)

    def forget(self, key: str) -> None:
        """Forgets the records of the copy with this key."""
        with self._lock:
            for url in [r.url for r in self._records.values() if r.key == key]:
                del self._records[url]
                self._passing.discard(url)
                self._path_of(url).unlink(missing_ok=True)

    def _path_of(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()}.json"


def _read(path: Path) -> CopyRecord | None:
    """Returns the record in a file; None if there is none that can be read."""
    try:
        form = json.loads(path.read_text())
        return CopyRecord(form["url"], form["fingerprint"], form["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
