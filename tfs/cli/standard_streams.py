"""stdin, stdout and stderr of programs that run for long.

Whoever reads what such a program prints may go away, and a disk may be full. Neither is a
reason to end a server, or to end it otherwise than by draining. So what cannot be printed
is lost; the log says the same and more.
"""

from __future__ import annotations

import contextlib
import os
import sys


def say(line: str) -> None:
    """Prints a line for the operator on stdout, if that can be done; never raises."""
    # Past the buffers: a line that they could not get rid of would change the exit code
    # when Python ends. In one write: lines of the log come before or after it.
    text = f"{line}\n".encode(errors="surrogateescape")
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        os.write(sys.stdout.fileno(), text)


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
