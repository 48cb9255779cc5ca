"""Opens the page of metrics, according to the options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from tfs.core.errors import Unavailable
from tfs.core.stats import Stats
from tfs.server.core import ServerCore
from tfs.server.metrics.exposition import CONTENT_TYPE
from tfs.server.metrics.http_door import HttpDoor
from tfs.server.metrics.metrics_page import MetricsPage, ServedModel
from tfs.server.metrics.monitoring_config import read_monitoring_config
from tfs.server.options import ServerOptions

log = logging.getLogger(__name__)


def metrics_door(
    options: ServerOptions,
    stats: Stats,
    core: ServerCore,
    is_ready: Callable[[], bool],
    started_s: float,
) -> HttpDoor | None:
    """Opens the port for the page; returns None if none is wanted, or it cannot be.

    As upstream (model_servers/server.cc), one of the two flags alone opens nothing, and
    a file without a port is not read; the log says which flag is missing. A port that
    cannot be opened, or that is the port of gRPC, is an error in the log, and the server
    serves without metrics: an exporter in the way must not keep models from answering.

    Raises:
        ServingError: The file of --monitoring_config_file cannot be used.

    """
    file, port = options.monitoring_config_file, options.rest_api_port
    if not port:
        if file:
            log.warning("event=no_metrics why='--rest_api_port opens no port for them'")
        return None
    if port == options.port:
        log.error(
            "event=no_metrics why='--rest_api_port cannot be the same as --port: use "
            "another one for metrics'"
        )
        return None
    path = read_monitoring_config(file) if file else ""
    if not path:
        log.warning(
            "event=nothing_on_rest_api_port why='there is no REST API; the port is "
            "for the metrics that --monitoring_config_file enables'"
        )
        return None

    def models() -> Mapping[str, ServedModel]:
        return {
            name: ServedModel(
                core.version_states(name),
                core.served.primary(name),
                core.failed_versions(name),
            )
            for name in core.config.models
        }

    page = MetricsPage(stats, models, is_ready, started_s)
    door = HttpDoor(options.grpc_host, port, {path: page.text}, CONTENT_TYPE)
    try:
        log.info("event=metrics_page address=%s", door.start())
    except Unavailable as error:
        log.error("event=no_metrics why=%r", error.message)
        return None
    return door
