"""How many files and sockets the process may have open.

Shells and service managers mostly begin with 1,024, for the sake of programs that use
``select``. That is too few for thousands of clients, and a server that runs out of them
cannot read its models either. So the limit is raised at the start as far as that needs
no privileges, as in other servers.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

WANTED: Final = 65_536


def raise_file_limit(wanted: int = WANTED) -> int:
    """Raises this process's limit as far as it may; returns the limit in force.

    Processes started later inherit it. A limit that is higher already stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    # A sandbox may refuse what the kernel would allow.
    except (OSError, ValueError) as error:
        log.warning("event=file_limit_kept limit=%d error=%s", soft, error)
        return soft
    return allowed
