"""stdin, stdout and stderr of programs that run for long."""

from __future__ import annotations

import os


def open_missing_streams() -> None:
    """Opens /dev/null in the place of standard streams that the parent has closed.

    Otherwise the next socket or file would get their numbers, and what libraries print
    would go there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd
            os.set_inheritable(fd, True)
