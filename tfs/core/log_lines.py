"""The form of log lines in all programs of TFS.

Each line has its time and its level, also those from processes that run models.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

LOG_FORMAT: Final = "%(asctime)s %(levelname).1s %(name)s %(message)s"


def write_own_lines() -> None:
    """Writes the log of ``tfs`` to stderr, and leaves all other loggers to the model.

    The root logger is left alone: a model that sets up logging finds it as it would in
    a program of its own. Once per process.
    """
    ours = logging.getLogger("tfs")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    ours.addHandler(handler)
    ours.propagate = False
