"""Unix sockets that listen, as both transports open them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import Final

UNIX: Final = "unix:"
"""What the addresses of Unix sockets begin with."""

_BACKLOG = 1024
_MAX_UNIX_PATH_BYTES: Final = 107  # Linux's sun_path has 108, with a zero at its end


def bind_unix(path: str, mode: int) -> socket.socket:
    """Returns a socket that listens at a path, non-blocking.

    A socket file on which nobody listens is replaced.

    Args:
        path: Absolute.
        mode: The permissions of the socket.

    Raises:
        OSError: Another server listens there, or it cannot be made there.
        ValueError: The path is not absolute.

    """
    if not os.path.isabs(path):
        raise ValueError(f"the path of a Unix socket must be absolute: {path!r}")
    listening = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        # Permissions are set before bind, so that the path never exists with wider
        # ones, and again afterwards, because bind applies the umask.
        os.fchmod(listening.fileno(), mode)
        listening.bind(path)
        os.chmod(path, mode)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def remedy(unix_path: str, error: OSError) -> str:
    """Returns what an operator can do if binding to an address failed."""
    if unix_path and error.errno is None:  # from Python: the path is too long
        return f"choose a path of at most {_MAX_UNIX_PATH_BYTES} bytes"
    if unix_path and error.errno == errno.ENOENT:
        return "make its directory first"
    with contextlib.suppress(OSError):
        if unix_path and not stat.S_ISSOCK(os.stat(unix_path).st_mode):
            return "what lies there is no socket: remove it, or choose another path"
    if isinstance(error, socket.gaierror):
        return "name an address of this machine, or 0.0.0.0 for all of them"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have it; 0.0.0.0 stands for all that it has"
    if not unix_path and error.errno == errno.EACCES:
        return "ports below 1024 take a privilege: choose another one"
    return "choose another address or stop what holds it"


def _remove_stale(path: str) -> None:
    """Removes a socket nobody listens on; anything else is left for bind to refuse."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return
