"""Envoy's aggregated discovery service (ADS): sends resources, and again when they change.

"State of the world": each answer has all resources of a type, and Envoy acknowledges or
refuses it. What Envoy has of a type stays in force until it takes another.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tfs.core.call import MethodKind, RpcMethod, StreamCall
from tfs.core.errors import FailedPrecondition
from tfs.hosted.routing.envoy_config import CLUSTER, ENDPOINTS, LISTENER, ROUTES

log = logging.getLogger(__name__)

PATH: Final = (
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

# Clusters before their endpoints, and both before the routes that lead to them.
_ORDER: Final = (CLUSTER, ENDPOINTS, LISTENER, ROUTES)

# What the resources consist of.
_MODULES: Final = (
    "config.cluster.v3.cluster",
    "config.endpoint.v3.endpoint",
    "config.listener.v3.listener",
    "config.route.v3.route",
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


class AdsServer:
    """Sends resources to all who ask. Confined to the serving loop.

    Raises:
        FailedPrecondition: The extra is not installed.

    """

    def __init__(self) -> None:
        self._messages = _Messages()
        self._resources: dict[str, Resources] = {}
        self._versions: dict[str, int] = {}
        self._streams: dict[StreamCall, _Stream] = {}

    def method(self) -> RpcMethod:
        """Returns the method that Envoy calls."""
        return RpcMethod(PATH, self._open, MethodKind.BIDIRECTIONAL)

    def set(self, kind: str, resources: Resources) -> None:
        """Replaces the resources of a type; tells who asked for them if they differ."""
        if resources == self._resources.get(kind):
            return
        self._resources[kind] = resources
        self._versions[kind] = self._versions.get(kind, 0) + 1
        for call, stream in list(self._streams.items()):
            self._tell(call, stream)

    def close(self) -> None:
        """Ends all streams."""
        for call in list(self._streams):
            call.finish()
        self._streams.clear()

    def _open(self, call: StreamCall) -> None:
        stream = _Stream()
        self._streams[call] = stream
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
        request = self._messages.request(message)
        kind = request.type_url
        if request.HasField("error_detail"):
            problem = request.error_detail.message
            log.error("event=envoy_refused kind=%s problem=%s", kind, problem)
        names = frozenset(request.resource_names)
        if stream.names.get(kind) != names:
            stream.names[kind] = names
            stream.sent.pop(kind, None)  # those that it did not ask for before
        self._tell(call, stream)

    def _tell(self, call: StreamCall, stream: _Stream) -> None:
        for kind in _ORDER:
            version = self._versions.get(kind)
            if kind not in stream.names or version in (None, stream.sent.get(kind)):
                continue
            stream.num_sent += 1
            wanted = stream.names[kind]
            # Clusters and listeners are asked for without names: all of them.
            found = [
                each
                for name, each in self._resources[kind].items()
                if not wanted or name in wanted
            ]
            reply = self._messages.response(kind, f"{version}", stream.num_sent, found)
            if call.send(reply):
                stream.sent[kind] = version or 0


class _Stream:
    """What one Envoy asked for, and was sent."""

    def __init__(self) -> None:
        self.names: dict[str, frozenset[str]] = {}
        self.sent: dict[str, int] = {}
        self.num_sent = 0


class _Messages:
    """Envoy's messages; of them only those that are used are imported."""

    def __init__(self) -> None:
        try:
            for name in _MODULES:
                importlib.import_module(f"envoy.{name}_pb2")
            from envoy.service.discovery.v3 import discovery_pb2
        except ImportError as error:
            raise FailedPrecondition(
                "routing by Envoy needs the extra: pip install 'tfs[envoy]'"
            ) from error
        self._discovery = discovery_pb2

    def request(self, message: bytes | memoryview) -> Any:
        """Returns a DiscoveryRequest."""
        return self._discovery.DiscoveryRequest.FromString(bytes(message))

    def response(
        self, kind: str, version: str, nonce: int, resources: Sequence[Any]
    ) -> bytes:
        """Returns a DiscoveryResponse."""
        from google.protobuf import json_format

        reply = self._discovery.DiscoveryResponse(
            type_url=kind, version_info=version, nonce=f"{nonce}"
        )
        for each in resources:
            json_format.ParseDict({"@type": kind, **each}, reply.resources.add())
        message: bytes = reply.SerializeToString()
        return message
