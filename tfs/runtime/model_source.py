"""Everything an interpreter needs to load one version.

It lives with the guests, which know nothing of this package. Other packages import it
from here.
"""

from __future__ import annotations

from tfs.runtime.guest.model_source import (
    MAX_CONCURRENCY,
    PLATFORMS,
    ModelSource,
    concurrency_of,
)

__all__ = ["MAX_CONCURRENCY", "PLATFORMS", "ModelSource", "concurrency_of"]
