"""The aggregated discovery service (ADS): sends resources, and again when they change.

"State of the world": each answer has all resources of a type, and is acknowledged or
refused. What a subscriber has of a type stays in force until it takes another. There are
two kinds of subscribers, Envoy and gRPC clients, and an offer for each.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tfs.core.call import MethodKind, RpcMethod, StreamCall
from tfs.core.errors import FailedPrecondition
from tfs.hosted.routing.envoy_config import CLUSTER, ENDPOINTS, LISTENER, ROUTES

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"

# Clusters before their endpoints, and both before the routes that lead to them.
_ORDER: Final = (CLUSTER, ENDPOINTS, LISTENER, ROUTES)

# What the resources consist of.
_MODULES: Final = (
    "config.cluster.v3.cluster",
    "config.endpoint.v3.endpoint",
    "config.listener.v3.listener",
    "config.route.v3.route",
    "extensions.filters.http.fault.v3.fault",
    "extensions.filters.http.lua.v3.lua",
    "extensions.filters.http.router.v3.router",
    "extensions.filters.network.http_connection_manager.v3.http_connection_manager",
    "extensions.retry.host.previous_hosts.v3.previous_hosts",
    "extensions.transport_sockets.tls.v3.tls",
    "extensions.upstreams.http.v3.http_protocol_options",
    "type.matcher.v3.http_inputs",
)

Resources = Mapping[str, Mapping[str, Any]]
"""The resources of a type by name, as plain values."""

Offer = Callable[[str, Collection[str]], Resources | None]
"""Returns the resources of a type for who names these; None: that is not known yet."""


class AdsServer:
    """Sends resources to all who ask. Confined to the serving loop.

    Raises:
        FailedPrecondition: The extra is not installed.

    """

    def __init__(self) -> None:
        try:
            for name in _MODULES:
                importlib.import_module(f"envoy.{name}_pb2")
            from envoy.service.discovery.v3 import discovery_pb2
        except ImportError as error:
            raise FailedPrecondition(
                "Envoy and xds:/// need the extra: pip install 'tfs[envoy]'"
            ) from error
        self._discovery = discovery_pb2
        self._offers: dict[bool, Offer] = {}  # to Envoy (True), to gRPC clients
        self._streams: dict[StreamCall, _Stream] = {}

    def method(self) -> RpcMethod:
        """Returns the method that subscribers call."""
        path = f"/{SERVICE}/StreamAggregatedResources"
        return RpcMethod(path, self._open, MethodKind.BIDIRECTIONAL)

    def offer(self, offer: Offer, *, to_envoy: bool) -> None:
        """Replaces what Envoy gets, or gRPC clients do; tells them what differs.

        Until it is called first, they wait, and keep what they have.
        """
        self._offers[to_envoy] = offer
        for call, stream in list(self._streams.items()):
            self._tell(call, stream)

    def close(self) -> None:
        """Ends all streams."""
        for call in list(self._streams):
            self._end(call)

    def _open(self, call: StreamCall) -> None:
        first = self._discovery.DiscoveryRequest.FromString(bytes(call.message))
        is_envoy = first.node.user_agent_name == "envoy"
        stream = self._streams[call] = _Stream(is_envoy)
        call.on_cancel(lambda: self._forget(call))
        call.on_half_close(lambda: self._end(call))
        call.on_message(lambda message: self._asked(call, stream, message))
        self._asked(call, stream, call.message)

    def _forget(self, call: StreamCall) -> None:
        self._streams.pop(call, None)

    def _end(self, call: StreamCall) -> None:
        self._forget(call)
        call.finish()

    def _asked(
        self, call: StreamCall, stream: _Stream, message: bytes | memoryview
    ) -> None:
        request = self._discovery.DiscoveryRequest.FromString(bytes(message))
        kind = request.type_url
        if request.HasField("error_detail"):
            problem = request.error_detail.message
            log.error("event=resources_refused kind=%s problem=%s", kind, problem)
        names = frozenset(request.resource_names)
        if stream.names.get(kind) != names:
            stream.names[kind] = names
            stream.sent.pop(kind, None)  # it may have left out what it did not know
        self._tell(call, stream)

    def _tell(self, call: StreamCall, stream: _Stream) -> None:
        from google.protobuf import json_format

        offer = self._offers.get(stream.is_envoy)
        for kind in _ORDER:
            if offer is None or kind not in stream.names:
                continue
            resources = offer(kind, stream.names[kind])
            if resources is None or stream.sent.get(kind) == resources:
                continue
            stream.num_sent += 1
            form = {
                "type_url": kind,
                "version_info": f"{stream.num_sent}",
                "nonce": f"{stream.num_sent}",
                "resources": [{"@type": kind, **each} for each in resources.values()],
            }
            reply = self._discovery.DiscoveryResponse()
            json_format.ParseDict(form, reply)
            if call.send(reply.SerializeToString()):
                stream.sent[kind] = resources


@dataclass(slots=True)
class _Stream:
    """What a subscriber asked for by type, and was sent."""

    is_envoy: bool
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    sent: dict[str, Resources] = field(default_factory=dict)
    num_sent: int = 0
