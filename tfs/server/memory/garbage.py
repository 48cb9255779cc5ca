"""Keeps the collector of cycles away from what lives as long as the process.

A full collection visits every object and holds the GIL: with torch imported, 190,000
objects and some 90 ms in which no request is answered, at each unload (what a version
held in cycles must go with it) and now and then between. What exists before anything is
served stays until the end, so it is frozen, and a collection visits what came later.
torch is imported when the ports are open already, and frozen before anything is loaded
beside it (:meth:`tfs.server.interpreters.Interpreters.prepare`).

Rejected: collecting less often, which keeps unloaded versions in memory; freezing again
after each load, which would keep their cycles for good.
"""

from __future__ import annotations

import gc


def freeze_imported() -> None:
    """Collects once, then exempts all objects that there are from collections.

    To be called when everything is imported and nothing is loaded yet. Blocks for a
    full collection, and the GIL with it.
    """
    gc.collect()
    gc.freeze()
