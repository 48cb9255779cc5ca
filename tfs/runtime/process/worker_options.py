"""How a worker process runs.

It lives with the guests, which know nothing of this package. Other packages import it from
here.
"""

from __future__ import annotations

from tfs.runtime.guest.worker_options import WorkerOptions

__all__ = ["WorkerOptions"]
