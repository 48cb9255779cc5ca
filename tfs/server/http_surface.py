"""The HTTP port of a server: TensorFlow Serving's REST API, health and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tfs.core.call import ListenerOptions, MethodTable
from tfs.core.errors import Unavailable
from tfs.core.own_descriptors import OWN
from tfs.core.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http1.options import HttpOptions
from tfs.frontends.http1.transport import HttpTransport
from tfs.handlers.rest.handler import RestHandler
from tfs.handlers.rest.root import HttpRoot, TextPage
from tfs.server.core import ServerCore
from tfs.server.metrics.exposition import CONTENT_TYPE
from tfs.server.metrics.metrics_page import MetricsPage, ServedModel
from tfs.server.metrics.monitoring_config import read_monitoring_config
from tfs.server.options import ServerOptions

log = logging.getLogger(__name__)

METRICS: Final = "/metrics"


class Readiness(Protocol):
    """What health tells. Thread-safe."""

    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        ...

    def is_model_available(self, name: str) -> bool | None:
        """Whether a model can answer; None if it is not configured."""
        ...


class HttpSurface:
    """The HTTP port, if the options ask for one. One thread starts and closes it.

    As upstream (model_servers/server.cc), a port that cannot be opened, or that is the
    port of gRPC, is an error in the log, and the server goes on without it.

    Args:
        options: Say where it listens, and what is there.
        loop: The serving loop.
        budget: What clients of all transports together may take.
        run: Runs a function on a thread.

    """

    def __init__(
        self,
        options: ServerOptions,
        loop: ServingLoop,
        budget: MemoryBudget,
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        self._options = options
        self._run = run
        self._address = ""
        self._transport = HttpTransport(
            loop,
            budget,
            HttpOptions(
                max_body_bytes=min(options.max_message_bytes, budget.largest_bytes),
                request_timeout_s=options.rest_api_timeout_s,
                max_connection_age_s=options.max_connection_age_s,
            ),
        )

    def start(
        self,
        methods: MethodTable,
        stats: Stats,
        core: ServerCore,
        readiness: Readiness,
        started_s: float,
    ) -> str:
        """Opens the port; returns its address, "HOST:PORT", or "" if there is none.

        Raises:
            ServingError: The file of --monitoring_config_file cannot be used.

        """
        options = self._options
        port = options.rest_api_port
        if not port:
            if options.monitoring_config_file:
                log.warning(
                    "event=no_metrics why='--rest_api_port opens no port for them'"
                )
            return ""
        if port == options.port and not options.any_port:
            log.error(
                "event=no_http why='--rest_api_port cannot be the same as --port: use "
                "another one'"
            )
            return ""
        page = _metrics_page(stats, core, readiness, started_s)
        pages = {METRICS: page}
        if options.monitoring_config_file:
            path = read_monitoring_config(options.monitoring_config_file)
            if path:
                pages[path] = page
        root = HttpRoot(
            RestHandler.over(
                methods,
                max_json_bytes=options.max_json_bytes,
                has_cors=options.rest_api_enable_cors_support,
            ),
            readiness.is_ready,
            readiness.is_model_available,
            pages,
            self._run,
        )
        host = options.grpc_host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        try:
            (self._address,) = self._transport.start(
                [ListenerOptions("http", f"{host}:{max(port, 0)}")], root
            )
        except Unavailable as error:
            log.error("event=no_http flag=--rest_api_port why=%r", error.message)
            return ""
        OWN.add_address(self._address)
        log.info("event=http_listening address=%s", self._address)
        return self._address

    def drain(self, deadline_s: float) -> bool:
        """See :meth:`HttpTransport.drain`."""
        return not self._address or self._transport.drain(deadline_s)

    def close(self) -> None:
        """Closes the port and what is connected; idempotent."""
        if self._address:
            self._transport.close()
            OWN.remove_address(self._address)
            self._address = ""


def _metrics_page(
    stats: Stats, core: ServerCore, readiness: Readiness, started_s: float
) -> TextPage:
    def models() -> Mapping[str, ServedModel]:
        return {
            name: ServedModel(
                core.version_states(name),
                core.served.primary(name),
                core.failed_versions(name),
            )
            for name in core.config.models
        }

    page = MetricsPage(stats, models, readiness.is_ready, started_s)
    return TextPage(page.text, CONTENT_TYPE)
