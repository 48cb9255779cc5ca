"""A file to which torch writes an archive, on a disk that may be full.

torch closes an archive in a C++ destructor, where a failed write ends the whole
process: the program that trained the model. When it writes to a Python file, it does
not check how much was written, so a failure can be reported after torch is done.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import IO, cast


@contextlib.contextmanager
def archive_file(path: str) -> Iterator[IO[bytes]]:
    """Yields a new file at ``path`` whose ``write`` never raises OSError.

    Raises:
        OSError: The file cannot be made. Or, at the end of the block, something could
            not be written; the file must not be used then.

    """
    file = _PatientFile(path)
    try:
        yield cast("IO[bytes]", file)
    finally:
        file.close()
    if file.error is not None:
        raise OSError(file.error.errno, file.error.strerror, path) from file.error


class _PatientFile(io.RawIOBase):
    """Remembers the first failure, and drops everything after it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = open(path, "wb")  # noqa: SIM115
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        if self.error is None:
            try:
                self._file.write(view)
            except OSError as error:
                self.error = error
        return view.nbytes

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Does nothing: torch writes in order, and goes to the start when it is done."""
        return 0

    def close(self) -> None:
        super().close()
        try:
            self._file.close()  # writes what is still in the buffer
        except OSError as error:
            self.error = self.error or error
