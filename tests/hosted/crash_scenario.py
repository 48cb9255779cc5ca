"""A controller and a synchronizer that work through requests, and may be killed on the way.

python -m tests.hosted.crash_scenario FOLDER CRASH_AT
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.hosted.failing_store import FailingStore
from tests.hosted.fleets import MIB, check
from tfs.core.errors import ResourceExhausted
from tfs.hosted.controller import Controller
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.reports import JobReport, report_of
from tfs.hosted.snapshot import Snapshot
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.synchronizer import Synchronizer
from tfs.proto.tfs.v1 import admin_service_pb2
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock


class KeptServers:
    """Servers whose models are in a file, because they outlive who tells them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def configs(self) -> dict[str, dict[str, str]]:
        """The base path of each model of each server, by address."""
        if not self._path.exists():
            return {}
        found: dict[str, dict[str, str]] = json.loads(self._path.read_text())
        return found

    def list_models(self, address: str, before: JobReport) -> JobReport:
        reply = admin_service_pb2.ListModelsResponse()
        reply.server.started_s = 1.0
        for name, base_path in self.configs.get(address, {}).items():
            model = reply.models.add(name=name, base_path=base_path, primary=1)
            model.versions.add(version=1, state=30)
        return report_of(reply)

    def aspire(self, address: str, request: admin_service_pb2.AspireRequest) -> None:
        told = {
            each.name: each.base_path
            for each in request.config.model_config_list.config
        }
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps(self.configs | {address: told}))
        scratch.replace(self._path)

    def keep(self, addresses: Collection[str]) -> None:
        pass


def requests() -> list[Any]:
    """The requests, in order; their ids are their places."""
    hints = pb.Hints(memory_bytes=10 * MIB, min_replicas=1)
    return [
        pb.AddJobRequest(job="a:1", memory_bytes=25 * MIB),
        pb.AddJobRequest(job="b:1", memory_bytes=30 * MIB),
        pb.AddModelRequest(model="m", base_path="/m", hints=hints),
        pb.AddModelRequest(model="n", base_path="/n", hints=hints),
        pb.SetPolicyRequest(model="m", pinned=pb.Pinned(version=1)),
        pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=2)),
        pb.UpdateModelRequest(model="n", base_path="/moved"),
        pb.DrainJobRequest(job="a:1"),
        pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=1, max_replicas=1)),
        pb.DrainJobRequest(job="a:1"),
        pb.RemoveModelRequest(model="n"),
    ]


def work_through(folder: Path, crash_at: int = 0) -> tuple[Snapshot, int]:
    """Sends all requests, with looks between; returns the end, and how many steps it took."""
    clock = FakeClock()
    store = FailingStore(SqliteStore(str(folder / "fleet.db"), clock))
    store.crash_at = crash_at
    state = FleetState(store)
    servers = KeptServers(folder / "servers.json")
    synchronizer = Synchronizer(state, servers, lambda _: None, clock, holder="s")
    controller = Controller(state, EditReader(check, lambda _: 10 * MIB), clock)
    for number, request in enumerate(requests()):
        request.edit.request_id, request.edit.wait_s = f"{number}", 0.0
        with contextlib.suppress(ResourceExhausted):  # an answer like others
            controller.change(request, None, lambda op: None)
        for _ in range(4):
            clock.advance(1.0)
            synchronizer.look()
    end = state.read()
    store.close()
    return end, store.num_steps


def main(folder: Path, steps: list[int]) -> int:
    """Works through in a fork for each step, killed there; returns how many were not."""
    others = 0
    for step in steps:
        place = folder / f"{step}"
        place.mkdir()
        pid = os.fork()
        if not pid:
            work_through(place, step)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        others += os.waitstatus_to_exitcode(status) != -signal.SIGKILL
    return others


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]))
