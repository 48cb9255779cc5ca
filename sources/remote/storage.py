"""Base paths that are URLs: anything fsspec speaks (memory, s3, gs, http, ...).

fsspec is imported at the first use of such a path, and only here; the drivers of
the stores are extras of their own (s3fs, gcsfs).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final

from sources.storage.version_contents import IGNORED_FOLDERS, Contents
from tfs.core.version.manifest import MANIFEST

# The names under which stores tell when an object was written, and its digest.
_TIME_KEYS: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
_DIGEST_KEYS: Final = ("ETag", "etag", "md5Hash", "md5", "checksum", "generation")
_COPY_BYTES: Final = 1 << 20
# Seconds between two log-ins. Logging in to a store takes 0.1 s of CPU time, and while
# a store is down every base path in it fails once a second.
_LOGIN_PAUSE_S: Final = 15.0
# Most file systems of a chain; nobody chains more. A driver whose chain leads back to
# itself must not hold its caller for ever.
_MAX_CHAINED: Final = 8


class RemoteFileSystem:
    """Reads directories behind URLs. Thread-safe as far as fsspec's driver is.

    Every failure is an OSError, whatever the driver raises. Drivers read credentials
    only once. So after a failure the store is logged in to anew, at most four times a
    minute, so that replaced credentials are found.

    Args:
        now: The time, in seconds.

    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        # Guards _logged_out_s; leaf, nothing is called under it.
        self._lock = threading.Lock()
        # The time of the last log-in, by store.
        self._logged_out_s: dict[str, float] = {}

    def list_directories(self, path: str) -> Sequence[str]:
        """Returns the directories, or common prefixes, under ``path``."""
        file_system, inner = self._open(path)
        entries = self._call(
            path, lambda: file_system.ls(inner, detail=True), file_system
        )
        return sorted(
            {
                name
                for entry in entries
                if entry.get("type") == "directory"
                # A store may list the prefix itself.
                and (name := _below(str(entry["name"]), inner))
                and "/" not in name
            }
        )

    def broken_links(self, path: str) -> Sequence[str]:
        """Returns nothing, because stores have no links."""
        return ()

    def is_file(self, path: str) -> bool:
        """Whether an object lies at ``path``."""
        file_system, inner = self._open(path)
        return bool(self._call(path, lambda: file_system.isfile(inner), file_system))

    def contents(self, path: str) -> Contents:
        """Returns what lies under ``path``; the fingerprint uses the store's digests."""
        found = self._files(path)
        if not found:
            raise FileNotFoundError(2, "No such file or directory", path)
        lines = []
        names = set()
        has_manifest = False
        times: list[float] = []
        for name, entry in found.items():
            names.add(name.partition("/")[0])
            has_manifest |= name == MANIFEST
            stamp = next((entry[k] for k in _DIGEST_KEYS if entry.get(k)), None)
            written_s = _time_s(entry)
            if written_s is not None:
                times.append(written_s)
            lines.append(f"{name} {entry.get('size')} {stamp or written_s}")
        digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        return Contents(
            frozenset(names),
            digest[:32],
            max(times, default=None),
            has_manifest=has_manifest,  # asking for it costs as much as all the rest
        )

    def place(self, path: str) -> str:
        """Returns the store: scheme and host, or bucket."""
        scheme, _, rest = path.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    def file_sizes(self, path: str) -> Mapping[str, int]:
        """Returns bytes by relative path, of all files under ``path``."""
        found = self._files(path)
        return {name: int(entry.get("size") or 0) for name, entry in found.items()}

    def read(self, path: str) -> bytes:
        """Returns a small file's bytes."""
        file_system, inner = self._open(path)
        data = self._call(path, lambda: file_system.cat_file(inner), file_system)
        return bytes(data)

    def copy(self, path: str, to: BinaryIO) -> str:
        """Copies a file's bytes to ``to``; returns their SHA-256."""
        file_system, inner = self._open(path)
        digest = hashlib.sha256()

        def copy() -> None:
            with file_system.open(inner, "rb") as source:
                while chunk := source.read(_COPY_BYTES):
                    digest.update(chunk)
                    to.write(chunk)

        self._call(path, copy, file_system)
        return digest.hexdigest()

    def put(self, source: str, path: str) -> None:
        """Copies a local file to a URL."""
        file_system, inner = self._open(path)

        def put() -> None:
            file_system.makedirs(inner.rpartition("/")[0], exist_ok=True)
            file_system.put_file(source, inner)

        self._call(path, put, file_system)

    def _files(self, path: str) -> dict[str, Any]:
        """Returns what the driver says of all files under ``path``, in order."""
        file_system, inner = self._open(path)
        found = self._call(
            path, lambda: file_system.find(inner, detail=True), file_system
        )
        return {
            name: entry
            for full_name, entry in sorted(found.items())
            if (name := _below(str(full_name), inner))
            and not IGNORED_FOLDERS & set(name.split("/")[:-1])
        }

    def _open(self, path: str) -> tuple[Any, str]:
        """Returns fsspec's file system for a URL, without its caches, and the rest."""
        try:
            import fsspec
        except ImportError as error:
            raise OSError(
                f"{path} needs fsspec: install tfs with its extra 'remote'"
            ) from error

        def find() -> tuple[Any, str]:
            file_system, inner = fsspec.core.url_to_fs(path)
            file_system.invalidate_cache()
            return file_system, str(inner)

        opened: tuple[Any, str] = self._call(path, find)
        return opened

    def _call(self, path: str, fn: Any, file_system: Any = None) -> Any:
        try:
            return fn()
        except FileNotFoundError:
            raise
        except PermissionError as error:
            self._log_out(path, file_system)
            told = error.strerror or str(error) or "Permission denied"
            what = (
                f"{told}; see that the server's credentials are valid and may read it"
            )
            raise PermissionError(errno.EACCES, what, path) from error
        except OSError:
            self._log_out(path, file_system)
            raise
        except Exception as error:  # drivers have error types of their own
            self._log_out(path, file_system)
            raise OSError(
                errno.EIO, f"{type(error).__name__}: {error}", path
            ) from error

    def _log_out(self, path: str, file_system: Any) -> None:
        """Makes the next call create the driver's file system anew; other calls go on.

        That includes the file systems that a chain (``simplecache::s3://``) lies upon.
        """
        store, now_s = self.place(path), self._now()
        with self._lock:
            last_s = self._logged_out_s.get(store)
            if last_s is not None and now_s < last_s + _LOGIN_PAUSE_S:
                return
            self._logged_out_s[store] = now_s
        for _ in range(_MAX_CHAINED):
            if file_system is None:
                break
            with contextlib.suppress(Exception):
                type(file_system).clear_instance_cache()
            file_system = getattr(file_system, "fs", None)


def _below(name: str, folder: str) -> str:
    """Returns ``name`` relative to ``folder``; empty if it is the folder itself."""
    folder = folder.strip("/")
    name = name.strip("/")
    if name == folder:
        return ""
    return name.removeprefix(folder + "/") if folder else name


def _time_s(entry: Mapping[str, Any]) -> float | None:
    for key in _TIME_KEYS:
        value = entry.get(key)
        if isinstance(value, dt.datetime):
            if value.tzinfo is None:
                value = value.replace(tzinfo=dt.UTC)
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            try:
                return dt.datetime.fromisoformat(value).timestamp()
            except ValueError:
                continue
    return None
