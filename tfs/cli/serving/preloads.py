"""A server of private Pythons starts itself again without ``LD_PRELOAD``.

What it preloads is not in the private Pythons, which use the C library's allocator: memory
that one allocator gave would be returned to another.
"""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger(__name__)


def start_without_preloads() -> None:
    """Replaces this program by the same one without ``LD_PRELOAD``; returns if it is not set."""
    preloaded = os.environ.get("LD_PRELOAD")
    if not preloaded:
        return
    log.warning(
        "event=preloads_left_out libraries=%s hint='LD_PRELOAD does not reach private "
        "Pythons (dlmopen), and memory would be returned to another allocator'",
        preloaded,
    )
    logging.shutdown()
    environment = {
        name: os.environ[name] for name in os.environ if name != "LD_PRELOAD"
    }
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
