"""The HTTP port of a server: TensorFlow Serving's REST API, health and metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from tfs.core.call import MethodTable
from tfs.core.errors import Unavailable
from tfs.core.executor import Executor
from tfs.core.http_call import HttpReply
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http1.shared_state import HttpOptions
from tfs.frontends.http1.transport import HttpTransport
from tfs.handlers.health import HealthReader
from tfs.handlers.message_limits import PARSED_FACTOR, JsonRoom
from tfs.handlers.oip.rest import PREFIX as OIP
from tfs.handlers.oip.rest import OipRestHandler
from tfs.handlers.rest.handler import RestHandler
from tfs.handlers.rest.paths import PREFIX as REST
from tfs.handlers.rest.root import HttpRoot, Page
from tfs.server.core import ServerCore
from tfs.server.metrics_page import (
    CONTENT_TYPE,
    MetricsPage,
    ServedModel,
    Totals,
    read_monitoring_config,
)
from tfs.server.options import ServerOptions
from tfs.server.page.handler import PageHandler
from tfs.server.ports.listeners import http_listeners
from tfs.server.ports.openapi_pages import DOCUMENT, OpenApiPages
from tfs.server.ports.transports import connection_age_s

log = logging.getLogger(__name__)

METRICS: Final = "/metrics"


class HttpSurface:
    """The HTTP port, if the options ask for one. One thread starts and closes it.

    As upstream (model_servers/server.cc), a port that cannot be opened, or that is the
    port of gRPC, is an error in the log, and the server goes on without it.

    Args:
        options: Say where it listens, and what is there.
        loop: The serving loop.
        budget: What clients of all transports together may take.
        executor: Writes pages and performs TLS handshakes.

    """

    def __init__(
        self,
        options: ServerOptions,
        loop: ServingLoop,
        budget: MemoryBudget,
        executor: Executor,
    ) -> None:
        self._options = options
        self._executor = executor
        self._now = loop.clock.now
        most = budget.largest_bytes // PARSED_FACTOR  # there is never room for more
        self._json_room = JsonRoom(min(options.max_json_bytes, most))
        self._addresses: Sequence[str] = ()
        self._transport = HttpTransport(
            loop,
            budget,
            HttpOptions(
                max_body_bytes=min(options.max_message_bytes, budget.largest_bytes),
                request_timeout_s=options.rest_api_timeout_s,
                max_connection_age_s=connection_age_s(options),
            ),
            executor,
        )

    def start(
        self,
        methods: MethodTable,
        stats: Stats,
        core: ServerCore,
        health: HealthReader,
        page: PageHandler,
        started_s: float,
        totals: Totals,
    ) -> None:
        """Opens the port and the socket that the options ask for.

        Raises:
            ServingError: The file of --monitoring_config_file, or the certificates,
                cannot be used.

        """
        options = self._options
        doors = http_listeners(options)
        if not doors:
            if options.monitoring_config_file:
                log.warning(
                    "event=no_metrics why='--rest_api_port opens no port for them'"
                )
            return
        run, room = self._executor.submit, self._json_room
        metrics = _metrics_page(stats, core, health, started_s, totals)
        path = read_monitoring_config(options.monitoring_config_file) or METRICS
        described = OpenApiPages(core, run)
        has_cors = options.rest_api_enable_cors_support
        rest = RestHandler(methods, room, described.describe, has_cors=has_cors)
        oip = OipRestHandler(methods, room, self._now, rest.bursts)
        root = HttpRoot(
            {REST: rest, OIP: oip},
            health.is_ready,
            health.is_model_available,
            {METRICS: metrics, path: metrics, DOCUMENT: described.document},
            page,
            run,
        )
        try:
            self._addresses = self._transport.start(doors, root, rest.take_alike)
        except Unavailable as error:
            log.error("event=no_http flag=--rest_api_port why=%r", error.message)

    @property
    def addresses(self) -> Sequence[str]:
        """Where it listens; empty if it does not."""
        return self._addresses

    @property
    def urls(self) -> Sequence[str]:
        """The addresses, told from those of gRPC: http://HOST:PORT, http+unix:/path."""
        scheme = "https" if self._options.rest_api_tls else "http"
        return [
            f"http+{each}" if each.startswith("unix:") else f"{scheme}://{each}"
            for each in self._addresses
        ]

    def drain(self, deadline_s: float) -> bool:
        """See :meth:`HttpTransport.drain`."""
        return not self._addresses or self._transport.drain(deadline_s)

    def close(self) -> None:
        """Closes the port and what is connected; idempotent."""
        if self._addresses:
            self._transport.close()
            self._addresses = ()


def _metrics_page(
    stats: Stats,
    core: ServerCore,
    health: HealthReader,
    started_s: float,
    totals: Totals,
) -> Page:
    def models() -> Iterator[tuple[str, ServedModel]]:
        for name in core.config.models:
            states, failed = core.version_states(name), core.failed_versions(name)
            yield name, ServedModel(states, core.served.primary(name), failed)

    page = MetricsPage(stats, models, health.is_ready, started_s, totals)
    return lambda _: HttpReply(page.parts(), content_type=CONTENT_TYPE)
