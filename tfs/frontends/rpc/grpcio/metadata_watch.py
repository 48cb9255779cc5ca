"""Keeps the metadata of grpcio's calls from filling memory.

grpcio hands over calls with megabytes of metadata, beyond its own limit, if a client
sends them in many CONTINUATION frames. And it leaves the metadata of every call to the
collector, because it looks handlers up by a function that refers to itself (both seen
with 1.85.1). The collector counts objects, not bytes, and comes by too late.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

from tfs.core.call import Metadata

_MOST_BYTES: Final = 65_536  # of one call; grpcio's own limit is 16 KB
_MUCH_BYTES: Final = 1 << 20  # of all calls until garbage is collected
_GENERATION: Final = 1  # young objects alone: that takes a millisecond


class MetadataWatch:
    """Refuses excessive metadata, and frees what is left of it.

    Confined to grpcio's thread.

    Args:
        most_bytes: The most that grpcio is told to accept.
        collect: Collects a generation and those younger.

    """

    def __init__(
        self,
        most_bytes: int = _MOST_BYTES,
        collect: Callable[[int], object] = gc.collect,
    ) -> None:
        self._most_bytes = max(most_bytes, _MOST_BYTES)
        self._collect = collect
        self._num_bytes = 0

    def is_too_much(self, metadata: Metadata) -> bool:
        """Tells whether a call is to be refused; it must not keep the metadata then."""
        num_bytes = sum(len(key) + len(value) for key, value in metadata)
        self._num_bytes += num_bytes
        if self._num_bytes > _MUCH_BYTES:
            self._num_bytes = 0
            # It is garbage as soon as grpcio has the handler.
            asyncio.get_running_loop().call_soon(self._collect, _GENERATION)
        return num_bytes > self._most_bytes
