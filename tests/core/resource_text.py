"""Resource allocations, written the short way that tests use."""

from __future__ import annotations

import re

from tfs.core.resources import Resource, ResourceAllocation


def parse(text: str) -> ResourceAllocation:
    """Reads "main:0/ram=8, gpu/ram=4"; without a number the entry is unbound."""
    entries = []
    for entry in filter(None, text.split(", ")):
        found = re.fullmatch(r"(\w+)(?::(\d+))?/(\w+)=(-?\d+)", entry)
        assert found is not None, entry
        device, instance, kind, quantity = found.groups()
        number = None if instance is None else int(instance)
        entries.append((Resource(device, kind, number), int(quantity)))
    return ResourceAllocation(entries)
