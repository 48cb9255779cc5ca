"""What gRPC clients of ``xds:///MODEL`` are told over ADS: the servers that have the model.

They send requests there themselves, to one server after the other, and need no router. A
resource that gRPC does not understand is refused as a whole, so each says what is necessary
and no more. All of a model's resources have the model's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tfs.core.call import ListenerOptions, RpcMethod
from tfs.core.errors import Code
from tfs.core.executor import ThreadExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.hosted.routing import envoy_config
from tfs.hosted.routing.ads import SERVICE, AdsServer, Resources
from tfs.hosted.routing.fleet_router import Routes


class XdsRouter:
    """Implements :class:`~tfs.hosted.routing.fleet_router.FleetRouter` in the clients.

    Args:
        door: Where clients ask for servers.
        loop: Its thread.
        ads: Tells the clients.

    """

    def __init__(
        self, door: ListenerOptions, loop: ServingLoop, ads: AdsServer
    ) -> None:
        self._door = replace(door, services=frozenset({SERVICE}))
        self._loop = loop
        self._ads = ads
        # gRPC takes numbers, not names of hosts, and looking these up blocks.
        self._lookups = ThreadExecutor(1, "look-up-hosts", loop.clock)

    @property
    def listeners(self) -> Sequence[ListenerOptions]:
        return [self._door]

    def methods(self) -> Sequence[RpcMethod]:
        return [self._ads.method()]

    def set_routes(self, routes: Routes) -> None:
        self._lookups.submit(partial(self._look_up, routes))

    def drain(self, deadline_s: float) -> bool:
        self._loop.post(self._ads.close)
        return True

    def close(self) -> None:
        self._loop.post(self._end)

    def _end(self) -> None:
        self._lookups.close(self._loop.clock.now())

    def _look_up(self, routes: Routes) -> None:
        addresses = {each for at in routes.values() for each in at}
        # gRPC takes no sockets from ADS.
        hosts = (each for each in addresses if not each.startswith("unix:"))
        offer = partial(_offer, routes, envoy_config.places(hosts))
        self._loop.post(lambda: self._ads.offer(offer, to_envoy=False))


def _offer(
    routes: Routes, places: Mapping[str, Any], kind: str, models: Collection[str]
) -> Resources:
    """Is an :data:`~tfs.hosted.routing.ads.Offer`.

    Models that are not there have resources too: of a name without any, gRPC waits for
    some for fifteen seconds.
    """
    if kind == envoy_config.LISTENER:
        return {each: _listener(each, is_known=each in routes) for each in models}
    if kind == envoy_config.CLUSTER:
        return {each: _cluster(each) for each in models}
    if kind == envoy_config.ENDPOINTS:
        return {each: _endpoints(each, routes.get(each, ()), places) for each in models}
    return {}


def _endpoints(
    model: str, addresses: Sequence[str], places: Mapping[str, Any]
) -> dict[str, Any]:
    at = [places[each] for each in sorted(addresses) if each in places]
    return envoy_config.assignment(model, at)


def _listener(model: str, *, is_known: bool) -> dict[str, Any]:
    # A request has the deadline that its caller gave it.
    again = {"retry_on": "cancelled,unavailable", "num_retries": 3}
    to = {"cluster": model, "retry_policy": again}
    routes = [{"match": {"prefix": ""}, "route": to}]
    fault = {"grpc_status": Code.NOT_FOUND.value, "percentage": {"numerator": 100}}
    filters = {} if is_known else {"fault.v3.HTTPFault": {"abort": fault}}
    hosts = [{"domains": ["*"], "routes": routes}]
    manager = envoy_config.manager(filters, route_config={"virtual_hosts": hosts})
    return {"name": model, "api_listener": {"api_listener": manager}}


def _cluster(model: str) -> dict[str, Any]:
    return {
        "name": model,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": envoy_config.ADS},
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [envoy_config.MANY]},
    }
