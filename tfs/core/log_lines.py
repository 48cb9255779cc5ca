"""What lines of the log look like, in every program of ours.

Who reads a log wants to know of each line when it was written and how grave it is, also
of those that come from a process that runs models.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

LOG_FORMAT: Final = "%(asctime)s %(levelname).1s %(name)s %(message)s"


def write_own_lines() -> None:
    """Has what ``tfs`` logs written to stderr, where a model decides about the rest.

    The root logger is left alone: a model that sets up logging finds it as it would in
    a program of its own. Once per process.
    """
    ours = logging.getLogger("tfs")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    ours.addHandler(handler)
    ours.propagate = False
