"""Memory of a process and all its descendants, shared pages counted once in sum."""

from __future__ import annotations

import re
from pathlib import Path

from tests.benchmarks.process_cpu import offspring, read_all

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def read_tree_pss_mb(root_pid: int, proc: Path = Path("/proc")) -> dict[int, float]:
    """Returns the proportional set size of each living member of the tree, by pid.

    Their sum is what the tree holds: a page that n processes map counts 1/n in each.
    A member that ends while it is read is left out.
    """
    alive = {times.pid: times for times in read_all(proc)}
    if root_pid not in alive:
        return {}
    sizes_mb = {}
    for pid in offspring({root_pid}, alive):
        try:
            text = (proc / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found = _PSS.search(text)
        if found is not None:
            sizes_mb[pid] = int(found[1]) * 1024 / 1e6
    return sizes_mb
