"""A model's ``LoggingConfig``, validated: see docs/configuration.md."""

from __future__ import annotations

from typing import Final

from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.proto.tensorflow_serving.config import logging_config_pb2
from tfs.server.model_settings import LoggingSettings, TaskSampling

_FILE: Final = "file"


def read_logging(
    name: str, config: logging_config_pb2.LoggingConfig
) -> LoggingSettings:
    """Returns a model's settings for its request log.

    Raises:
        InvalidArgument: A value is wrong; names the model, the field and what is
            expected.
        Unimplemented: A field asks for something that does not exist.

    """
    where = f"model {name}: logging_config"
    if config.HasField("custom_logging_config"):
        raise Unimplemented(f"{where}.custom_logging_config is not supported")
    collector = config.log_collector_config
    if collector.type not in ("", _FILE):
        raise InvalidArgument(
            f"{where}: Cannot find LogCollector::Factory for type: {collector.type}; "
            f'"{_FILE}" writes TFRecord files'
        )
    if not collector.filename_prefix.startswith("/"):
        raise InvalidArgument(
            f"{where}.log_collector_config.filename_prefix must be an absolute path: "
            f"{collector.filename_prefix!r}"
        )
    if "\0" in collector.filename_prefix:
        raise InvalidArgument(
            f"{where}.log_collector_config.filename_prefix holds a zero byte"
        )
    sampling = config.sampling_config
    if sampling.attributes:
        raise Unimplemented(
            f"{where}.sampling_config.attributes: requests carry no origin and no "
            "criticality here"
        )
    return LoggingSettings(
        filename_prefix=collector.filename_prefix,
        rate=_rate(f"{where}.sampling_config", sampling.sampling_rate),
        tasks=tuple(
            TaskSampling(
                _rate(
                    f"{where}.sampling_config.per_task_sampling_configs",
                    each.sampling_rate,
                ),
                each.dc,
                each.task_index if each.HasField("task_index") else None,
            )
            for each in sampling.per_task_sampling_configs
        ),
    )


def _rate(where: str, rate: float) -> float:
    if not 0 <= rate <= 1:
        raise InvalidArgument(f"{where}.sampling_rate must be in 0..1: {rate}")
    return rate
