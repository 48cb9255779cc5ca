"""The file of --monitoring_config_file: a text ``MonitoringConfig``."""

from __future__ import annotations

from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import monitoring_config_pb2
from tfs.server.config.config_file import read_config_file

DEFAULT_PATH: Final = "/monitoring/prometheus/metrics"


def read_monitoring_config(path: str) -> str:
    """Returns the path of the page that it enables; "" if it enables none.

    Raises:
        FailedPrecondition: It cannot be read.
        InvalidArgument: It is not such a text, or its path does not begin with "/".

    """
    config = monitoring_config_pb2.MonitoringConfig()
    try:
        read_text(read_config_file(path, "MonitoringConfig"), config)
    except ParseError as error:
        raise InvalidArgument(f"--monitoring_config_file={path}: {error}") from error
    if not config.prometheus_config.enable:
        return ""
    page = config.prometheus_config.path or DEFAULT_PATH
    if not page.startswith("/"):
        raise InvalidArgument(
            f"--monitoring_config_file={path}: prometheus_config.path must begin with "
            f"a slash: {page!r}"
        )
    return page
