"""The keeper of a device's weights, with a device that only counts."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from tests.runtime.process_host import until
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.devices.device_memory import Handle
from tfs.runtime.guest.devices.weights_keeper import WeightsKeeper
from tfs.runtime.guest.devices.weights_lease import Place, WeightsLease
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd
from tfs.testing.patience import PATIENCE_S

FILE = bytes(range(256)) * 4
ONE: Place = ("model.pt", 0, 256)
TWO: Place = ("model.pt", 256, 512)


def content(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


class CountingMemory:
    """Storages by number; knows what is held, and what was handed out of it."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}
        self.exported: set[tuple[int, int]] = set()
        self.num_copies = 0
        self.room_bytes = 1 << 20
        self.can_export = True

    def hold(self, source: torch.UntypedStorage) -> CountedStorage:
        if source.nbytes() > self.room_bytes:
            raise MemoryError("the device is full")
        self.num_copies += 1
        return CountedStorage(self, self.num_copies, content(source))

    def open(self, handle: Handle) -> torch.UntypedStorage:
        data = bytearray(self.held[int(handle[0])])
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()

    def collect(self) -> None:
        pass


class CountedStorage:
    def __init__(self, memory: CountingMemory, number: int, data: bytes) -> None:
        self._memory = memory
        self._number = number
        self._num_exports = 0
        self.size_bytes = len(data)
        memory.held[number] = data

    def __del__(self) -> None:
        del self._memory.held[self._number]

    def export(self) -> Handle:
        if not self._memory.can_export:
            raise RuntimeError("no such system call")
        self._num_exports += 1
        self._memory.exported.add((self._number, self._num_exports))
        return [self._number, self._num_exports]

    def release(self, handle: Handle) -> None:
        self._memory.exported.remove((int(handle[0]), int(handle[1])))


class Host:
    """A keeper on a thread, and what its host does."""

    def __init__(self) -> None:
        self.memory = CountingMemory()
        self.channel, theirs = control_channel.pair()
        self.channel.settimeout(PATIENCE_S)
        fd = new_memfd("weights")
        os.write(fd, FILE)
        self.file = SealedFile.seal(fd)
        self.thread = threading.Thread(target=WeightsKeeper(theirs, self.memory).run)
        self.thread.start()
        self.leases: list[WeightsLease] = []

    def lease(self, version: int = 1) -> WeightsLease:
        lease = WeightsLease(self.channel_of(version), self.memory)
        self.leases.append(lease)
        return lease

    def channel_of(self, version: int = 1) -> socket.socket:
        ours, theirs = control_channel.pair()
        with theirs:
            body = json.dumps({"lease": version, "files": ["model.pt"]}).encode()
            fds = (theirs.fileno(), self.file.fd)
            control_channel.send(self.channel, body, fds)
        return ours

    def drop(self, version: int = 1) -> None:
        body = json.dumps({"drop": version}).encode()
        control_channel.send(self.channel, body)

    def dropped(self) -> int:
        """Waits until a version is gone."""
        message = control_channel.receive(self.channel)
        assert message is not None
        return int(json.loads(message[0])["dropped"])

    def close(self) -> None:
        self.channel.close()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.file.close()
        for lease in self.leases:
            lease.close()
        assert not self.memory.exported


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def opened(lease: WeightsLease, place: Place) -> bytes:
    storage = lease.open(place)
    assert storage is not None, lease.refusal
    return content(storage)


def test_a_place_is_copied_once_for_all_who_open_it(host: Host) -> None:
    """Each gets a name of its own for the same memory."""
    first, second = host.lease(), host.lease()
    assert opened(first, ONE) == opened(second, ONE) == FILE[:256]
    assert opened(first, TWO) == FILE[256:768]
    assert host.memory.num_copies == 2
    assert len(host.memory.exported) == 3


def test_what_a_loaded_model_does_not_keep_goes(host: Host) -> None:
    """Memory is released when no lease keeps it or has it open."""
    first, second = host.lease(), host.lease()
    for lease in (first, second):
        opened(lease, ONE)
        opened(lease, TWO)
    first.keep([ONE])
    until(lambda: len(host.memory.exported) == 3, "the release")
    assert len(host.memory.held) == 2
    second.keep([ONE])
    until(lambda: len(host.memory.held) == 1, "the end of what nobody keeps")


def test_what_is_kept_outlives_the_worker(host: Host) -> None:
    """The next one finds it; the name that the first was given is taken back."""
    first = host.lease()
    opened(first, ONE)
    first.keep([ONE])
    first.close()
    until(lambda: not host.memory.exported, "the release")
    assert opened(host.lease(), ONE) == FILE[:256]
    assert host.memory.num_copies == 1


def test_a_dropped_version_is_gone_when_its_last_lease_ends(host: Host) -> None:
    """A dropped version goes, and the host is told, when its last lease has ended."""
    first, second = host.lease(), host.lease()
    opened(first, ONE)
    opened(second, ONE)
    host.drop()
    first.close()
    until(lambda: len(host.memory.exported) == 1, "the release")
    assert len(host.memory.held) == 1
    second.close()
    assert host.dropped() == 1
    assert not host.memory.held
    assert not host.memory.exported


def test_a_version_without_leases_is_dropped_at_once(host: Host) -> None:
    """Even a version that the keeper never had is dropped at once: nobody may wait."""
    host.drop(7)
    assert host.dropped() == 7


def test_versions_do_not_share(host: Host) -> None:
    """A place is one of its version's file, whatever the names are."""
    first, second = host.lease(1), host.lease(2)
    opened(first, ONE)
    opened(second, ONE)
    assert host.memory.num_copies == 2
    first.close()
    host.drop(1)
    assert host.dropped() == 1
    assert len(host.memory.held) == 1


def test_a_full_device_refuses_and_may_have_room_later(host: Host) -> None:
    """Whoever was refused has copies of its own; what it opened before stays shared."""
    first = host.lease()
    opened(first, ONE)
    host.memory.room_bytes = 256
    assert first.open(TWO) is None
    assert "the device is full" in first.refusal
    assert not first.is_final
    assert opened(host.lease(), ONE) == FILE[:256]
    host.memory.room_bytes = 1 << 20
    assert opened(host.lease(), TWO) == FILE[256:768]


def test_memory_that_cannot_be_exported_is_refused_for_good(host: Host) -> None:
    """Nothing of it stays on the device."""
    host.memory.can_export = False
    lease = host.lease()
    assert lease.open(ONE) is None
    assert lease.is_final
    assert "no such system call" in lease.refusal
    until(lambda: not host.memory.held, "the end of what cannot be exported")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"open": 1}',
        b'{"open": ["model.pt", 0, 0]}',
        b'{"open": ["model.pt", 0, "1"]}',
        b'{"kept": [["model.pt"]]}',
        b'{"what": 1}',
    ],
)
def test_garbage_ends_the_lease_it_came_from(host: Host, garbage: bytes) -> None:
    """A model's code may write what it wants there; no other worker notices."""
    other = host.lease()
    opened(other, ONE)
    channel = host.channel_of()
    channel.settimeout(PATIENCE_S)
    with channel:
        control_channel.send(channel, garbage)
        assert control_channel.receive(channel) is None
    assert opened(other, TWO) == FILE[256:768]


@pytest.mark.parametrize(
    "place",
    [
        ("model.pt", -1, 8),
        ("model.pt", 1020, 8),
        ("other", 0, 8),
        ("model.pt", 0, 4096),
    ],
)
def test_a_place_outside_the_file_is_refused(host: Host, place: Place) -> None:
    """Whatever number a worker sends, nothing but the file is read."""
    lease = host.lease()
    assert lease.open(place) is None
    assert "no such place" in lease.refusal


def test_a_lease_without_a_keeper_says_so() -> None:
    """Who loads a model goes on with copies of its own."""
    ours, theirs = control_channel.pair()
    theirs.close()
    lease = WeightsLease(ours, CountingMemory())
    assert lease.open(ONE) is None
    assert lease.refusal
    assert not lease.is_final
    lease.keep([])
    lease.close()
