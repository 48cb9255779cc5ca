"""How a worker process runs.

Lives with the guests, which know nothing of this package; rooms above import it here.
"""

from __future__ import annotations

from tfs.runtime.guest.worker_options import WorkerOptions

__all__ = ["WorkerOptions"]
