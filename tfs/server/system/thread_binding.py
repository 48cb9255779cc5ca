"""Settings of OpenMP that would tie the server, and every worker, to one core.

With them, importing torch binds the importing thread, and whatever it forks or starts
inherits that. Here many threads and processes share the cores, so they are left out.
"""

from __future__ import annotations

import logging
import os

from tfs.runtime.process.zygote_process import BINDING

log = logging.getLogger(__name__)


def drop_thread_binding() -> None:
    """Takes these variables out of the environment, and says so; before torch is imported."""
    found = [name for name in BINDING if os.environ.pop(name, None) is not None]
    if found:
        log.warning(
            "event=thread_binding_ignored variables=%s hint='they would confine the server "
            "and all processes of models to the cores of one thread; use taskset, or "
            "cpuset of the container'",
            ",".join(found),
        )
