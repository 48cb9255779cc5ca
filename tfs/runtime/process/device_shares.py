"""Versions whose weights are on a device only once, shared by all their workers.

A device has one keeper process, from the first version that is loaded there until the
last one is unloaded. Each worker that loads a version takes a *lease* of the version's
share, and the share is given back when the last interpreter has unloaded the version.

- If the keeper dies, nothing guarantees any more that the memory which workers see stays
  what it was. The workers are ended and come back with a new keeper, and no model is
  blamed. A keeper that dies too often is not replaced.
- If a model writes to its shared weights, its version gets copies of its own.
- If the device's memory cannot be shared on this host (no IPC between containers, a driver
  without it), or the keeper cannot have it, workers have copies of their own. The log
  says why, once for each device and reason.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.crash_policy import CrashHistory, CrashPolicy
from tfs.runtime.process.keeper_process import KeeperProcess
from tfs.runtime.process.zygote_client import ZygoteClient

log = logging.getLogger(__name__)

# How long to wait until a killed worker is gone and the keeper frees the device's memory
_DROP_S: Final = 10.0

OnLost = Callable[[str], None]
"""Takes the reason why a worker must not go on with its shared weights."""


def _nothing() -> None:
    """Does nothing, in place of a callback for which nobody waits."""


class _Member:
    """One interpreter's use of a version's share."""

    def __init__(self, keeper: KeeperProcess, on_lost: OnLost) -> None:
        self.keeper = keeper
        self.on_lost = on_lost
        self.shared_bytes = 0  # 0 until the worker has reported
        self.lost = ""  # why its keeper died, if that happened first


class VersionShare:
    """One version's weights on its device. Made anywhere, then loop-confined.

    Its members are the interpreters that use it. Each is named by the object that
    stands for the version on that interpreter.
    """

    def __init__(
        self, shares: DeviceShares, key: int, device: str, kind: str, who: str
    ) -> None:
        self._shares = shares
        self.key = key
        """The keeper's name for it; a new one whenever the version is put there anew."""
        self.device = device
        self.kind = kind
        self._who = who
        self._refusal = ""
        self._members: dict[object, _Member] = {}
        self._keeper: KeeperProcess | None = None  # the keeper that holds its weights

    @property
    def shared_bytes(self) -> int:
        """The most bytes that a member shares with others."""
        return max((each.shared_bytes for each in self._members.values()), default=0)

    def lease(self, member: object, files: VersionFiles, on_lost: OnLost) -> int | None:
        """Returns a worker's end of a lease; None if the worker should make a copy.

        The caller closes it.

        Args:
            member: Whose lease it is. One that it had before has ended with its worker.
            files: The version's files.
            on_lost: Called when the worker has to be replaced.

        """
        keeper = None if self._refusal else self._shares.keeper(self)
        fd = keeper.lease(self.key, files) if keeper is not None else None
        if keeper is None or fd is None:
            self.leave(member, _nothing)
            return None
        self._keeper = keeper
        self._members[member] = _Member(keeper, on_lost)
        return fd

    def note(self, member: object, loaded: Mapping[str, object]) -> None:
        """Takes note of what a worker reported about its load."""
        found = self._members.get(member)
        if found is None:
            return
        why, size_bytes = loaded.get("not_shared"), loaded.get("shared_bytes")
        if isinstance(why, str) and why and not found.lost:
            self._shares.refuse(self.device, why, final=bool(loaded["cannot_share"]))
        if not isinstance(size_bytes, int) or not size_bytes:
            self.leave(member, _nothing)
            return
        found.shared_bytes = size_bytes
        log.info(
            "event=weights_shared servable=%s device=%s size_bytes=%d",
            self._who,
            self.device,
            size_bytes,
        )
        if found.lost:
            found.on_lost(found.lost)

    def give_up(self, why: str) -> None:
        """Has every worker of the version replaced by one with copies of its own."""
        if self._refusal:
            return
        self._refusal = why
        log.warning(
            "event=weights_not_shared servable=%s device=%s why=%r",
            self._who,
            self.device,
            why,
        )
        self._tell_lost(f"was ended to have weights of its own: {why}")

    def lose(self, keeper: KeeperProcess, why: str) -> None:
        """Takes note that a keeper is gone."""
        if self._keeper is keeper:
            self._keeper = None
        self._tell_lost(why, keeper)

    def _tell_lost(self, why: str, keeper: KeeperProcess | None = None) -> None:
        for each in list(self._members.values()):
            if keeper is not None and each.keeper is not keeper:
                continue
            if each.shared_bytes:
                each.on_lost(why)
            else:
                each.lost = why

    def leave(self, member: object, on_done: Callable[[], None]) -> None:
        """Removes a member; calls ``on_done`` when the device has its memory back.

        It does so at once if other members remain, and in bounded time in any case.
        """
        self._members.pop(member, None)
        keeper = self._keeper
        if self._members or keeper is None:
            on_done()
            return
        # A member that comes from now on gets a new key, so it need not wait for this.
        key, self.key = self.key, self._shares.new_key()
        self._keeper = None
        self._shares.drop(keeper, self.device, key, on_done)


class DeviceShares:
    """The keepers of a server. Loop-confined, except the constructor and ``of``.

    Args:
        loop: Watches the keepers.
        zygote: Forks them.
        options: They run with the same options as workers.
        kinds: The kind of memory that is shared on a device, by its type ("cuda").
        crashes: Decides when a keeper has died too often.

    """

    def __init__(
        self,
        loop: ServingLoop,
        zygote: ZygoteClient,
        options: WorkerOptions,
        kinds: Mapping[str, str],
        crashes: CrashPolicy | None = None,
    ) -> None:
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._kinds = dict(kinds)
        self._crashes = crashes or CrashPolicy()
        self._keys = itertools.count()
        self._keepers: dict[str, KeeperProcess] = {}  # by device
        self._versions: dict[KeeperProcess, dict[int, VersionShare]] = {}
        self._dropping: dict[tuple[KeeperProcess, int], Callable[[], None]] = {}
        self._histories: dict[str, CrashHistory] = {}
        self._refused: dict[str, str] = {}  # by device: why it never shares memory
        self._told: set[tuple[str, str]] = set()
        self._closed = False

    def of(self, source: ModelSource) -> VersionShare | None:
        """Returns a new share for a version; None if its device shares nothing."""
        kind = self._kinds.get(source.device.partition(":")[0])
        if kind is None:
            return None
        device = "cuda:0" if source.device == "cuda" else source.device
        return VersionShare(self, self.new_key(), device, kind, source.id.slashed)

    def new_key(self) -> int:
        """Returns a name for a version that no keeper has seen yet."""
        return next(self._keys)

    def keeper_pid(self, device: str) -> int | None:
        """Returns the process that keeps a device's weights; None while there is none."""
        keeper = self._keepers.get(device)
        return keeper.pid if keeper is not None else None

    def keeper(self, share: VersionShare) -> KeeperProcess | None:
        """Returns the keeper for a version, started if necessary; None if that failed."""
        device = share.device
        if self._closed or device in self._refused:
            return None
        keeper = self._keepers.get(device)
        if keeper is None:
            history = self._histories.setdefault(device, CrashHistory(self._crashes))
            now_s = self._loop.clock.now()
            if history.is_too_many(now_s):
                num = history.num_recent(now_s)
                self.refuse(device, f"its keeper died {num} times", final=False)
                return None
            keeper = self._start(device, share.kind)
        if keeper is not None:
            self._versions[keeper][share.key] = share
        return keeper

    def refuse(self, device: str, why: str, *, final: bool) -> None:
        """Logs why workers have copies of their own there; ``final`` makes that permanent."""
        if final:
            self._refused[device] = why
        if (device, why) not in self._told:
            self._told.add((device, why))
            log.warning(
                "event=weights_not_shared device=%s why=%r final=%s", device, why, final
            )

    def drop(
        self,
        keeper: KeeperProcess,
        device: str,
        version: int,
        on_done: Callable[[], None],
    ) -> None:
        """Has a keeper drop a version; ends the keeper after its last version."""
        key = (keeper, version)
        if keeper not in self._versions or not keeper.drop(version):
            on_done()
            return
        timer: Timer | None = None

        def done() -> None:
            self._dropping.pop(key, None)
            if timer is not None:
                timer.cancel()
            versions = self._versions.get(keeper)
            if versions is not None:
                versions.pop(version, None)
                if not versions:
                    self._close(device, keeper)
            on_done()

        def give_up() -> None:
            log.warning(
                "event=weights_not_dropped device=%s keeper=%s",
                device,
                keeper.pid,
            )
            done()

        self._dropping[key] = done
        timer = self._loop.call_at(self._loop.clock.now() + _DROP_S, give_up)

    def close(self) -> None:
        """Ends every keeper; idempotent."""
        self._closed = True
        for device, keeper in list(self._keepers.items()):
            self._close(device, keeper)
        for done in list(self._dropping.values()):
            done()

    def _start(self, device: str, kind: str) -> KeeperProcess | None:
        def on_dropped(key: int) -> None:
            done = self._dropping.get((keeper, key))
            if done is not None:
                done()

        def on_end(why: str) -> None:
            self._loop.post(lambda: self._on_end(device, keeper, why))

        try:
            keeper = KeeperProcess(
                self._loop,
                self._zygote,
                self._options,
                kind,
                device,
                on_dropped,
                on_end,
            )
        except OSError as error:
            self.refuse(device, f"no keeper: {error.strerror}", final=False)
            return None
        self._keepers[device] = keeper
        self._versions[keeper] = {}
        return keeper

    def _close(self, device: str, keeper: KeeperProcess) -> None:
        keeper.close()
        self._versions.pop(keeper, None)
        if self._keepers.get(device) is keeper:
            del self._keepers[device]

    def _on_end(self, device: str, keeper: KeeperProcess, why: str) -> None:
        versions = self._versions.get(keeper, {})
        if self._keepers.get(device) is not keeper:
            return  # it was closed meanwhile
        log.error("event=weights_keeper_ended device=%s why=%r", device, why)
        self._histories[device].add(self._loop.clock.now())
        self._close(device, keeper)
        for (of, _), done in list(self._dropping.items()):
            if of is keeper:
                done()
        text = f"was ended: the process that kept its weights on {device} is gone"
        for share in list(versions.values()):
            share.lose(keeper, text)
