"""A worker's conversation with the keeper of its device's weights, for one model.

    worker to keeper   {"open": place} | {"kept": [place, ...]}
    keeper to worker   {"handle": ...} | {"refused": why, "is_final": ...}

A place is a file of the version, an offset and a number of bytes. "kept" says which of
the opened places the model still uses once it is loaded; it has no answer. The lease
lasts as long as the channel is open, and so long the keeper leaves what it opened where
it is. So it ends with the worker, however that ends.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Final, TypeAlias

import torch

from tfs.runtime.guest import control_channel
from tfs.runtime.guest.devices.device_memory import DeviceMemory
from tfs.runtime.guest.fault_text import one_line

Place: TypeAlias = "tuple[str, int, int]"
"""A file's name, an offset in it, and bytes from there on."""

_ANSWER_S: Final = 120.0  # the first answer waits for a CUDA context; copies are quick


class WeightsLease:
    """Opens a version's weights on its device. Confined to the loading thread.

    Args:
        channel: The channel to the keeper; owned from now on.
        memory: The device's.

    Attributes:
        refusal: Why nothing can be opened any more; empty while it can.
        is_final: Whether the device's memory cannot be shared at all on this host.

    """

    def __init__(self, channel: socket.socket, memory: DeviceMemory) -> None:
        channel.settimeout(_ANSWER_S)
        self._channel = channel
        self._memory = memory
        self.refusal = ""
        self.is_final = False

    def open(self, place: Place) -> torch.UntypedStorage | None:
        """Returns the bytes of a place on the device. Blocks while they are copied there.

        Returns None if that is not possible; it is not possible later, either.
        """
        if self.refusal:
            return None
        try:
            control_channel.send(self._channel, json.dumps({"open": place}).encode())
            message = control_channel.receive(self._channel)
        except OSError as error:
            self.refusal = f"its keeper does not answer: {one_line(error)}"
            return None
        if message is None:
            self.refusal = "its keeper has ended"
            return None
        body, fds = message
        control_channel.close_all(fds)
        answer = json.loads(body)
        if "refused" in answer:
            self.refusal = str(answer["refused"])
            self.is_final = bool(answer["is_final"])
            return None
        try:
            return self._memory.open(answer["handle"])
        except Exception as error:
            self.refusal = f"its memory cannot be opened here: {one_line(error)}"
            self.is_final = True
            return None

    def keep(self, places: Iterable[Place]) -> None:
        """Tells the keeper which of the opened places the model uses."""
        body = json.dumps({"kept": list(places)}).encode()
        try:
            control_channel.send(self._channel, body)
        except OSError:
            self.refusal = self.refusal or "its keeper has ended"

    def close(self) -> None:
        """Ends the lease, so that what it opened may go at any moment. Idempotent."""
        self._channel.close()
