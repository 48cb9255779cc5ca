"""The keeper of one device's weights: a process that keeps them there for all workers.

It is a fork of the zygote and runs no code of models. It maps the sealed files of
versions. When a worker is the first to ask for a place in a file, it copies that to the
device. It gives workers handles by which they open what is there.

    host to keeper     {"lease": version, "files": [...]}, a worker's channel and the
                       files' descriptors | {"drop": version}
    keeper to host     {"dropped": version}

1. A place that a lease has opened stays until that lease has ended. If the lease's model
   did not keep it, it goes when no other lease has it either.
2. A place that was kept stays even while no lease has it, for the worker that replaces one
   that died, until the version is dropped.
3. A version that was dropped goes when its last lease ends, and then the host is told.
4. Nothing that a worker sends ends the keeper. It ends when the host closes the channel or
   is gone.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
from typing import Final

import torch

from tfs.runtime.guest import control_channel
from tfs.runtime.guest.devices.device_memory import (
    DeviceMemory,
    Handle,
    HeldStorage,
    device_memory,
)
from tfs.runtime.guest.devices.weights_lease import Place
from tfs.runtime.guest.fault_text import one_line
from tfs.runtime.guest.sealed_file import SealedFile

# Most places that one lease may open; no model has more weights.
_MAX_PLACES: Final = 100_000


class _Version:
    """The files of one version, and the parts of them that are on the device."""

    def __init__(self, key: int, mappings: dict[str, mmap.mmap]) -> None:
        self.key = key
        self.mappings = mappings
        self.held: dict[Place, HeldStorage] = {}
        self.leases: set[_Lease] = set()
        self.is_dropped = False

    def source(self, place: Place) -> torch.UntypedStorage:
        """Returns the bytes of a place, from the mapping of the file.

        Raises:
            ValueError: The file has no such place.

        """
        name, offset, size_bytes = place
        mapping = self.mappings.get(name)
        if mapping is None or not 0 <= offset <= len(mapping) - size_bytes:
            raise ValueError("no such place")
        return torch.frombuffer(
            mapping, dtype=torch.uint8, count=size_bytes, offset=offset
        ).untyped_storage()

    def is_opened(self, place: Place) -> bool:
        return any(place in lease.opened for lease in self.leases)


class _Lease:
    """One worker's use of a version."""

    def __init__(self, channel: socket.socket, version: _Version) -> None:
        self.channel = channel
        self.version = version
        self.opened: dict[Place, list[Handle]] = {}


class WeightsKeeper:
    """Serves leases until the host's channel ends. Single-threaded.

    Args:
        channel: The channel to the host.
        memory: The device's.

    """

    def __init__(self, channel: socket.socket, memory: DeviceMemory) -> None:
        self._channel = channel
        self._memory = memory
        self._versions: dict[int, _Version] = {}
        self._leases: dict[int, _Lease] = {}  # by their channels' descriptors
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def run(self) -> None:
        """Returns when the host has closed its channel or is gone; nothing is left then."""
        try:
            while self._serve_round():
                pass
        finally:
            for lease in list(self._leases.values()):
                self._end(lease)
            self._channel.close()

    def _serve_round(self) -> bool:
        for fd, _ in self._poll.poll():
            lease = self._leases.get(fd)
            if lease is not None:
                self._serve(lease)
            elif fd == self._channel.fileno() and not self._take_order():
                return False
        return True

    # -- for the host ------------------------------------------------------------------

    def _take_order(self) -> bool:
        try:
            message = control_channel.receive(self._channel)
        except OSError:
            return False
        if message is None:
            return False
        body, fds = message
        order = json.loads(body)
        if "lease" in order:
            self._begin(order["lease"], order["files"], fds)
        else:
            control_channel.close_all(fds)
            self._drop(order["drop"])
        return True

    def _begin(self, key: int, names: list[str], fds: list[int]) -> None:
        channel = socket.socket(fileno=fds.pop(0))
        channel.setblocking(False)
        version = self._versions.get(key)
        if version is None:
            mappings = {
                name: SealedFile(fd, size_bytes).map()
                for name, fd in zip(names, fds, strict=True)
                if (size_bytes := os.fstat(fd).st_size)
            }
            version = self._versions[key] = _Version(key, mappings)
        control_channel.close_all(fds)
        lease = _Lease(channel, version)
        version.leases.add(lease)
        self._leases[channel.fileno()] = lease
        self._poll.register(channel.fileno(), select.POLLIN)

    def _drop(self, key: int) -> None:
        version = self._versions.get(key)
        if version is None:
            self._tell_dropped(key)  # no worker has asked for this version yet
        else:
            version.is_dropped = True
            self._drop_if_unused(version)

    def _drop_if_unused(self, version: _Version) -> None:
        if version.is_dropped and not version.leases:
            del self._versions[version.key]
            version.held.clear()
            version.mappings.clear()
            self._memory.collect()
            self._tell_dropped(version.key)

    def _tell_dropped(self, key: int) -> None:
        try:
            control_channel.send(self._channel, json.dumps({"dropped": key}).encode())
        except OSError:
            return  # the host is gone, and its channel's end comes next

    # -- for workers -------------------------------------------------------------------

    def _serve(self, lease: _Lease) -> None:
        """Answers one message; if anything is wrong with it, the lease ends."""
        try:
            try:
                message = control_channel.receive(lease.channel)
            except BlockingIOError:
                return  # the event was for another lease, which had the same descriptor
            if message is None:
                self._end(lease)
                return
            body, fds = message
            control_channel.close_all(fds)
            request = json.loads(body)
            if "open" in request:
                answer = self._open(lease, _place(request["open"]))
                control_channel.send(lease.channel, json.dumps(answer).encode())
            else:
                self._settle(lease, {_place(each) for each in request["kept"]})
        except Exception:
            self._end(lease)

    def _open(self, lease: _Lease, place: Place) -> dict[str, object]:
        version = lease.version
        if len(lease.opened) >= _MAX_PLACES:
            return {"refused": "too many places", "is_final": False}
        held = version.held.get(place)
        if held is None:
            try:
                held = self._memory.hold(version.source(place))
            except Exception as error:  # the device may be full
                self._memory.collect()
                return {"refused": one_line(error), "is_final": False}
            # Otherwise all pages that were copied would count as this process's. When
            # memory runs out, the kernel would take it for the largest, and kill it.
            version.mappings[place[0]].madvise(mmap.MADV_DONTNEED)
        try:
            handle = held.export()
        except Exception as error:
            why = f"its memory cannot be exported: {one_line(error)}"
            return {"refused": why, "is_final": True}
        version.held[place] = held
        lease.opened.setdefault(place, []).append(handle)
        return {"handle": handle}

    def _settle(self, lease: _Lease, kept: set[Place]) -> None:
        """Gives up what the loaded model does not use."""
        version = lease.version
        left = [place for place in lease.opened if place not in kept]
        for place in left:
            self._release(version, place, lease.opened.pop(place))
            if not version.is_opened(place):
                del version.held[place]
        if left:
            self._memory.collect()

    def _end(self, lease: _Lease) -> None:
        fd = lease.channel.fileno()
        self._poll.unregister(fd)
        del self._leases[fd]
        lease.channel.close()
        version = lease.version
        version.leases.discard(lease)
        for place, handles in lease.opened.items():
            self._release(version, place, handles)
        self._drop_if_unused(version)

    def _release(self, version: _Version, place: Place, handles: list[Handle]) -> None:
        held = version.held[place]
        for handle in handles:
            held.release(handle)


def _place(form: object) -> Place:
    match form:
        case [str(name), int(offset), int(size_bytes)] if size_bytes > 0:
            return name, offset, size_bytes
    raise ValueError("not a place")


def run(channel: socket.socket, kind: str, device: str) -> None:
    """Keeps a device's weights until the host's channel ends."""
    WeightsKeeper(channel, device_memory(kind, device)).run()
