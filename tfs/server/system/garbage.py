"""Keeps the collector of cycles away from objects that live as long as the process.

A full collection visits every object and holds the GIL. With torch imported, these are
190,000 objects and some 90 ms in which no request is answered. It happens at each
unload (objects that a version held in cycles must go with it) and now and then in
between. Objects that exist before anything is served stay until the end, so they are
frozen, and a collection visits only later ones. torch is imported when the ports are
open already, and is frozen before anything is loaded beside it
(:meth:`tfs.server.placing.interpreters.Interpreters.prepare`).

Rejected: collecting less often, which keeps unloaded versions in memory; freezing again
after each load, which would keep their cycles for good.
"""

from __future__ import annotations

import gc


def freeze_imported() -> None:
    """Collects once, then exempts all existing objects from collections.

    To be called when everything is imported and nothing is loaded yet. Blocks for a
    full collection, which holds the GIL.
    """
    gc.collect()
    gc.freeze()
