"""What Envoy is told: its start, and the resources that it is sent. Plain values.

Chosen by measurement, with a server of three killed or frozen under load: health checks every
half second and ejection by three failures, at most two thirds of a group, so that a dead
server, which has the fewest requests, does not draw all of them; retries of a quarter of the
requests under way and at least ten, because a budget of a twentieth made 541 of 3,204 calls
fail. (Envoy's budget holds for hedges and for retries alike.)
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tfs.core.errors import InvalidArgument
from tfs.hosted.routing.fleet_router import FORWARDED
from tfs.hosted.routing.job_connection import TlsFiles

log = logging.getLogger(__name__)

_TYPES: Final = "type.googleapis.com/"
CLUSTER: Final = f"{_TYPES}envoy.config.cluster.v3.Cluster"
ENDPOINTS: Final = f"{_TYPES}envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER: Final = f"{_TYPES}envoy.config.listener.v3.Listener"
ROUTES: Final = f"{_TYPES}envoy.config.route.v3.RouteConfiguration"

ROUTE_NAME: Final = "models"
OWN: Final = "own"
"""The cluster that is the process beside Envoy."""

ADS: Final = {"ads": {}, "resource_api_version": "V3"}
_FILTERS: Final = f"{_TYPES}envoy.extensions.filters"
_HTTP2: Final = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{_TYPES}envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}
_RETRY_ON: Final = (
    "reset,connect-failure,refused-stream,unavailable,cancelled,retriable-headers"
)
_NOT_FOUND: Final = {"name": "grpc-status", "string_match": {"exact": "5"}}
# Servers have limits of their own.
MANY: Final = dict.fromkeys(
    ("max_connections", "max_pending_requests", "max_requests"), 1_000_000
)
_LONGEST_REQUEST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class EnvoyOptions:
    """How Envoy routes. Immutable."""

    address: str  # where it answers: "HOST:PORT" with a port, or "unix:/path"
    folder: str  # for its files; its path is short enough for sockets
    hedge_after_s: float = 0.2  # without an answer: then a second server is asked

    def __post_init__(self) -> None:
        if not self.hedge_after_s > 0:
            raise InvalidArgument(
                f"hedge_after_s must be positive: {self.hedge_after_s}"
            )


def bootstrap(own_path: str, admin_path: str) -> dict[str, Any]:
    """Returns what Envoy starts with: where its configuration comes from."""
    own = {
        "name": OWN,
        "type": "STATIC",
        "typed_extension_protocol_options": _HTTP2,
        "circuit_breakers": {"thresholds": [MANY]},
        "load_assignment": assignment(OWN, [{"pipe": {"path": own_path}}]),
    }
    return {
        "node": {"id": "router", "cluster": "tfs"},
        "admin": {"address": {"pipe": {"path": admin_path}}},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": OWN}}],
            },
            "cds_config": ADS,
            "lds_config": ADS,
        },
        "static_resources": {"clusters": [own]},
    }


def cluster(name: str, tls: TlsFiles | None) -> dict[str, Any]:
    """Returns a group of servers, without their addresses."""
    made: dict[str, Any] = {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS},
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "typed_extension_protocol_options": _HTTP2,
        "health_checks": [
            {
                "timeout": "0.3s",
                "interval": "0.5s",
                "no_traffic_interval": "0.5s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        "ignore_health_on_host_removal": True,
        "outlier_detection": {
            "consecutive_gateway_failure": 3,
            "enforcing_consecutive_gateway_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": "1s",
            "max_ejection_percent": 67,
            "always_eject_one_host": True,
        },
        "circuit_breakers": {
            "thresholds": [
                {
                    **MANY,
                    "retry_budget": {
                        "budget_percent": {"value": 25.0},
                        "min_retry_concurrency": 10,
                    },
                }
            ]
        },
    }
    if tls is not None:
        made["transport_socket"] = _tls_socket(tls)
    return made


def listener(address: str) -> dict[str, Any]:
    """Returns where requests come in, and how their model is found."""
    made = manager(
        {"lua.v3.Lua": {"default_source_code": {"inline_string": _script()}}},
        stat_prefix="requests",
        codec_type="HTTP2",
        # Of a stream, this is the largest request that can be read for its model.
        http2_protocol_options={
            "initial_stream_window_size": _LONGEST_REQUEST_BYTES,
            "initial_connection_window_size": _LONGEST_REQUEST_BYTES,
        },
        stream_idle_timeout="0s",
        rds={"config_source": ADS, "route_config_name": ROUTE_NAME},
    )
    return {
        "name": "requests",
        "address": address_of(address),
        "per_connection_buffer_limit_bytes": _LONGEST_REQUEST_BYTES,
        "filter_chains": [
            {"filters": [{"name": "http_connection_manager", "typed_config": made}]}
        ],
    }


def manager(filters: Mapping[str, Mapping[str, Any]], **config: Any) -> dict[str, Any]:
    """Returns what takes requests, filters them by type, and routes them."""
    kind = "network.http_connection_manager.v3.HttpConnectionManager"
    return {
        "@type": f"{_FILTERS}.{kind}",
        "http_filters": [
            {"name": name, "typed_config": {"@type": f"{_FILTERS}.http.{name}", **each}}
            for name, each in {**filters, "router.v3.Router": {}}.items()
        ],
        **config,
    }


def routes(group_of: Mapping[str, str], hedge_after_s: float) -> dict[str, Any]:
    """Returns the group of each model; requests for others come to the router here."""
    matcher: dict[str, Any] = {"on_no_match": _action({"cluster": OWN})}
    if group_of:  # Envoy refuses an empty table
        matcher["matcher_tree"] = {
            "input": {
                "name": "model",
                "typed_config": {
                    "@type": f"{_TYPES}envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
                    "header_name": "x-model",
                },
            },
            "exact_match_map": {
                "map": {
                    name: _action({"cluster": group, **_again(hedge_after_s)})
                    for name, group in group_of.items()
                }
            },
        }
    host = {"name": "models", "domains": ["*"], "matcher": matcher}
    return {"name": ROUTE_NAME, "virtual_hosts": [host]}


def _again(hedge_after_s: float) -> dict[str, Any]:
    """Returns when a request is sent to another server of its group, too."""
    return {
        "retry_policy": {
            "retry_on": _RETRY_ON,
            "retriable_headers": [_NOT_FOUND],
            "num_retries": 3,
            "per_try_timeout": f"{hedge_after_s:.3f}s",
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": f"{_TYPES}envoy.extensions.retry.host."
                        "previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            "host_selection_retry_max_attempts": 5,
        },
        "hedge_policy": {"hedge_on_per_try_timeout": True},
    }


def _action(route: dict[str, Any]) -> dict[str, Any]:
    # The deadline that the caller sent counts, whatever it is.
    duration = {"grpc_timeout_header_max": "0s"}
    config = {
        "@type": f"{_TYPES}envoy.config.route.v3.Route",
        "match": {"prefix": "/"},
        "route": {"timeout": "0s", "max_stream_duration": duration, **route},
    }
    return {"action": {"name": "route", "typed_config": config}}


def assignment(name: str, addresses: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the servers of a group, whose addresses ``address_of`` made."""
    return {
        "cluster_name": name,
        "endpoints": [
            {
                "lb_endpoints": [{"endpoint": {"address": each}} for each in addresses],
                # gRPC leaves out endpoints without these.
                "locality": {},
                "load_balancing_weight": 1,
            }
        ],
    }


def address_of(text: str) -> dict[str, Any]:
    """Returns an address; a host's name is looked up, which may block or be an OSError."""
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:")}}
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return {"socket_address": {"address": host, "port_value": int(port)}}


def places(addresses: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns ``address_of`` each whose host is found, by address; may block."""
    found = {}
    for each in addresses:
        try:
            found[each] = address_of(each)
        except OSError as error:
            log.warning("event=no_such_host address=%s problem=%s", each, error)
    return found


def _tls_socket(tls: TlsFiles) -> dict[str, Any]:
    context: dict[str, Any] = {
        "alpn_protocols": ["h2"],
        "validation_context": {"trusted_ca": {"filename": tls.ca}},
    }
    if tls.cert:
        context["tls_certificates"] = [
            {
                "certificate_chain": {"filename": tls.cert},
                "private_key": {"filename": tls.key},
            }
        ]
    kind = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    return {
        "name": "tls",
        "typed_config": {"@type": f"{_TYPES}{kind}", "common_tls_context": context},
    }


def _script() -> str:
    """Returns the script that finds a request's model."""
    script = (Path(__file__).parent / "model_name.lua").read_text(encoding="utf-8")
    return script.replace("PATHS", ", ".join(f'["{path}"] = 1' for path in FORWARDED))
