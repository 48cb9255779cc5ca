"""A ``ModelServerConfig``, checked as a whole before anything is changed.

The text format and the messages are TensorFlow Serving's, with fields of ours from
20001 on (docs/configuration.md). The rest of the server sees :class:`ServerConfig`,
which is frozen and validated and has one :class:`ModelSettings` per model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import Message as ProtoMessage

from sources.version_policy import MAX_VERSION, All, Latest, Specific, VersionPolicy
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unimplemented,
)
from tfs.core.system.log_lines import fits_a_line
from tfs.proto._pool import POOL
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import (
    logging_config_pb2,
    model_server_config_pb2,
)
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.runtime.placement import Backend
from tfs.server.model_settings import (
    DETECT,
    MAX_INTERPRETERS,
    MAX_INTRA_OP_THREADS,
    ModelSettings,
    RuntimeSettings,
)

# In configs for TensorFlow Serving; means "detect it from the files" here.
_TENSORFLOW = "tensorflow"
_MODEL_TYPE_TENSORFLOW = 1
_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")
_MAX_QUOTED_CHARS: Final = 400
_MAX_ERRORS: Final = 10

Message = model_server_config_pb2.ModelServerConfig


# Values that most models have, shared so that tens of thousands of models do not each
# have their own.
_LATEST: Final = Latest()
_RUNTIME: Final = RuntimeSettings()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The models to serve, by name, and the message they were read from."""

    models: Mapping[str, ModelSettings]
    message: Message


def single_model(name: str, base_path: str) -> ServerConfig:
    """Returns the config of single-model mode."""
    message = Message()
    message.model_config_list.config.add(name=name, base_path=base_path)
    return read_config(message)


def parse_config_text(text: str, where: str) -> Message:
    """Reads the text format, without checking its values.

    Raises:
        InvalidArgument: A syntax error or an unknown field, with line and column.

    """
    message = Message()
    try:
        read_text(text, message)
    except ParseError as error:
        raise InvalidArgument(
            f"Invalid protobuf file: '{where}': {_brief(str(error))}"
        ) from error
    return message


def _brief(text: str) -> str:
    """Shortens a parser's message, which quotes the whole wrong line, to one line."""
    if len(text) > _MAX_QUOTED_CHARS:
        half = _MAX_QUOTED_CHARS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(each if each.isprintable() else "?" for each in text)


def read_config_text(
    text: str, where: str, platforms: Collection[str] | None = None
) -> ServerConfig:
    """Reads the text format.

    Args:
        text: The text.
        where: Where it comes from, for messages.
        platforms: Names of the existing platforms; None does not check that.

    Raises:
        InvalidArgument: It has a syntax error, with line and column, or a bad value.
        Unimplemented: A field asks for something that does not exist.

    """
    return read_config(parse_config_text(text, where), platforms)


def config_text(message: Message) -> str:
    """Returns the text form, which :func:`parse_config_text` reads back equal."""
    return text_format.MessageToString(message, descriptor_pool=POOL)


def read_config(
    message: Message, platforms: Collection[str] | None = None
) -> ServerConfig:
    """Validates a config, and returns it as settings.

    Raises:
        InvalidArgument: Names the model, what is wrong and what is expected.
        Unimplemented: A field asks for something that does not exist.

    """
    models, errors = read_models(message, platforms)
    if errors:
        raise all_of(errors)
    return ServerConfig(models, message)


def all_of(errors: Mapping[str, ServingError]) -> ServingError:
    """Returns one error for all that is wrong; if there are very many, for the first.

    Args:
        errors: By model, in the order of the config; at least one.

    """
    first, *others = errors.values()
    if not others:
        return first
    told = [error.message for error in (first, *others[: _MAX_ERRORS - 1])]
    more = len(errors) - len(told)
    if more > 0:
        told.append(f"and {more} more models are wrong")
    return type(first)("; ".join(told))


def read_models(
    message: Message,
    platforms: Collection[str] | None = None,
    before: ServerConfig | None = None,
) -> tuple[dict[str, ModelSettings], dict[str, ServingError]]:
    """Returns the settings of every valid model, and what is wrong with the others.

    Args:
        message: The config.
        platforms: Names of the existing platforms; None does not check that.
        before: A config in force; the settings of what it says as well are its own
            objects, because few of ten thousand models change at a time.

    Raises:
        InvalidArgument: It is not a list of models.
        Unimplemented: It is a custom config.

    """
    kind = message.WhichOneof("config")
    if kind == "custom_model_config":
        raise Unimplemented(
            "custom_model_config is not supported; list the models in model_config_list"
        )
    if kind is None:
        raise InvalidArgument(
            "the config is empty; to serve no model, say model_config_list {}"
        )
    models: dict[str, ModelSettings] = {}
    errors: dict[str, ServingError] = {}
    listed = before.message.model_config_list.config if before else ()
    known = {each.name: each for each in listed}
    for model in message.model_config_list.config:
        name = model.name
        try:
            if name in models or name in errors:
                raise InvalidArgument(
                    f"Illegal to list model {name} multiple times in config list"
                )
            if before is not None and known.get(name) == model:
                models[name] = before.models[name]
                continue
            # A copy: what settings keep of it would keep the whole message.
            own = model_server_config_pb2.ModelConfig()
            own.CopyFrom(model)
            models[name] = read_model(own)
            if platforms is not None:
                check_platform(models[name], platforms)
        except ServingError as error:
            models.pop(name, None)
            errors.setdefault(name, error)
    return models, errors


def check_change(old: ServerConfig, new: ServerConfig) -> None:
    """Checks that the running server may go from ``old`` to ``new``.

    Raises:
        FailedPrecondition: A model's platform would change.

    """
    for name, settings in new.models.items():
        before = old.models.get(name)
        if before is not None and before.platform != settings.platform:
            raise FailedPrecondition(
                "Illegal to change a model's platform. For model "
                f"{name} platform was {before.platform or _TENSORFLOW} and new "
                f"platform requested is {settings.platform or _TENSORFLOW}"
            )


def check_platform(settings: ModelSettings, platforms: Collection[str]) -> None:
    """Checks that a model's platform is one of these.

    Raises:
        InvalidArgument: It is not; names the model.

    """
    if settings.platform not in platforms:
        known = ", ".join(sorted(filter(None, platforms)))
        raise InvalidArgument(
            f"Model {settings.name} requests unsupported platform {settings.platform}; "
            f"known: {known}"
        )


def check_kind_change(message: Message) -> None:
    """Checks that a running server may take over a config of this kind.

    Raises:
        FailedPrecondition: It is a custom config.

    """
    if message.WhichOneof("config") == "custom_model_config":
        raise FailedPrecondition(
            "Cannot transition to requested config. It is only legal to transition "
            "from one ModelConfigList to another."
        )


def read_model(model: model_server_config_pb2.ModelConfig) -> ModelSettings:
    """Validates the config of one model.

    Raises:
        InvalidArgument: Names the model, what is wrong and what is expected.
        Unimplemented: A field asks for something that does not exist.

    """
    name = model.name
    if not name:
        raise InvalidArgument(
            f"the model with the base path {model.base_path!r} has no name; set its name"
        )
    if not fits_a_line(name):
        raise InvalidArgument(
            f"model {name!a}: a name has no control characters and no line feeds"
        )
    for label, version in model.version_labels.items():
        if not label or version < 0:
            raise InvalidArgument(
                f"model {name}: label {label!r} points to version {version}; give a "
                "non-empty label a version >= 0"
            )
    for field in ("transition", "residency"):
        _require_choice(f"model {name}: ", model, field)
    traffic = model.traffic
    primary = _read_primary(name, traffic)
    return ModelSettings(
        name=name,
        base_path=_read_base_path(name, model.base_path),
        platform=_read_platform(model),
        policy=_read_policy(name, model.model_version_policy),
        labels=dict(model.version_labels),
        primary=primary,
        canary=_read_canary(name, traffic, primary),
        keeps_resources=model.transition == model_config_pb2.RESOURCE_PRESERVING,
        is_on_demand=model.residency == model_config_pb2.ON_DEMAND,
        runtime=_read_runtime(model),
        logging=_checked_logging(name, model.logging_config)
        if model.HasField("logging_config")
        else None,
        validation=_checked_validation(name, model.validation)
        if model.HasField("validation")
        else None,
        excluded_versions=frozenset(model.excluded_versions),
    )


def _checked_validation(
    name: str, validation: model_config_pb2.Validation
) -> model_config_pb2.Validation:
    where = f"model {name}: validation"
    requests, skew = validation.requests, validation.skew
    if requests and not requests.startswith("/"):
        raise InvalidArgument(f"{where}.requests must be an absolute path: {requests}")
    if not any(map(validation.HasField, ("limits", "skew", "max_size_ratio"))):
        raise InvalidArgument(f"{where}.limits is required: it says what is refused")
    ratio = _set_float(validation, "max_size_ratio")
    if ratio is not None and not (ratio >= 1 and math.isfinite(ratio)):
        raise InvalidArgument(f"{where}.max_size_ratio must be at least 1: {ratio}")
    _check_guard(f"{where}.limits", validation.limits)
    if skew.statistics and not skew.statistics.startswith("/"):
        raise InvalidArgument(
            f"{where}.skew.statistics must be an absolute path: {skew.statistics}"
        )
    limits = ("max_drift", "max_out_of_range", "max_missing")
    _require_shares(f"{where}.skew", skew, limits)
    return validation


def _require_choice(where: str, message: ProtoMessage, field: str) -> None:
    """Refuses a number that an enum does not have, which the text form accepts."""
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    choices = kind.values_by_number if kind is not None else {}
    value = getattr(message, field)
    if value not in choices:
        raise InvalidArgument(
            f"{where}{field}: no such {field}: {value}; it is "
            f"{' or '.join(each.name for each in choices.values())}"
        )


def _read_base_path(name: str, base_path: str) -> str:
    if not base_path.startswith("/") and "://" not in base_path:
        raise InvalidArgument(
            f"Expected model {name} to have an absolute path or URI; "
            f"got base_path()={base_path}"
        )
    if not fits_a_line(base_path):
        raise InvalidArgument(
            f"model {name}: base_path has a control character: {base_path!a}"
        )
    return base_path


def _read_platform(model: model_server_config_pb2.ModelConfig) -> str:
    name, kind, platform = model.name, model.model_type, model.model_platform
    if kind and platform:
        raise InvalidArgument(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and "
            f"ModelServerConfig::model_platform, model name is {name}"
        )
    if kind not in (0, _MODEL_TYPE_TENSORFLOW):
        raise InvalidArgument(
            f"ModelServerConfig::model_type choice {kind} not supported."
        )
    return DETECT if platform in ("", _TENSORFLOW) else platform


def _read_policy(name: str, policy: object) -> VersionPolicy:
    match policy.WhichOneof("policy_choice"):  # type: ignore[attr-defined]
        case "all":
            return All()
        case "specific":
            versions = tuple(policy.specific.versions)  # type: ignore[attr-defined]
            if any(not 0 <= version <= MAX_VERSION for version in versions):
                raise InvalidArgument(f"model {name}: specific versions must be >= 0")
            return Specific(versions)
        case "latest":
            return Latest(max(1, policy.latest.num_versions))  # type: ignore[attr-defined]
        case _:
            return _LATEST


def _read_primary(name: str, traffic: model_config_pb2.Traffic) -> int | None:
    if not traffic.HasField("primary"):
        return None
    if traffic.primary < 0:
        raise InvalidArgument(f"model {name}: traffic.primary must be >= 0")
    return traffic.primary


def _read_canary(
    name: str, traffic: model_config_pb2.Traffic, primary: int | None
) -> model_config_pb2.Canary | None:
    if not traffic.HasField("canary"):
        return None
    canary = traffic.canary
    where = f"model {name}: traffic.canary"
    if not canary.HasField("version") or canary.version < 0:
        raise InvalidArgument(f"{where}.version is required and must be >= 0")
    if canary.version == primary:
        raise InvalidArgument(
            f"{where}.version: {canary.version} is the primary; a version cannot be "
            "on trial against itself"
        )
    for field in ("tee_fraction", "split_fraction"):
        _require_share(f"{where}.{field}", getattr(canary, field))
    if canary.HasField("guard"):
        _check_guard(f"{where}.guard", canary.guard)
    return canary


def _check_guard(where: str, guard: model_config_pb2.Guard) -> None:
    min_samples = guard.min_samples if guard.HasField("min_samples") else 1
    if min_samples < 1:
        raise InvalidArgument(f"{where}.min_samples must be >= 1: {min_samples}")
    _require_shares(where, guard, ("max_top1_disagreement", "max_error_rate"))
    for field in ("max_mean_abs_diff", "max_latency_ratio"):
        value = getattr(guard, field)
        if guard.HasField(field) and not (value >= 0 and math.isfinite(value)):
            raise InvalidArgument(f"{where}.{field} must be a number >= 0: {value}")


def _read_runtime(model: model_server_config_pb2.ModelConfig) -> RuntimeSettings:
    gates_examples = model.examples_gate or not model.HasField("examples_gate")
    if not model.HasField("runtime"):
        return _RUNTIME if gates_examples else RuntimeSettings(gates_examples=False)
    runtime, where = model.runtime, f"model {model.name}: runtime"
    backends = model_config_pb2.Runtime.Backend
    for field in ("backend", "isolation"):
        _require_choice(f"{where}.", runtime, field)
    device = runtime.device or "cpu"
    if not _DEVICE.fullmatch(device):
        raise InvalidArgument(
            f'{where}.device must be "cpu", "cuda" or "cuda:N": {device!r}'
        )
    for field, most in (
        ("num_interpreters", MAX_INTERPRETERS),
        ("intra_op_threads", MAX_INTRA_OP_THREADS),
    ):
        value = getattr(runtime, field)
        if value > most:
            raise InvalidArgument(f"{where}.{field} must be <= {most}: {value}")
    settings = RuntimeSettings(
        backend=Backend[backends.Name(runtime.backend)],
        must_isolate=runtime.isolation == model_config_pb2.Runtime.REQUIRED,
        num_interpreters=runtime.num_interpreters,
        device=device,
        intra_op_threads=runtime.intra_op_threads,
        gates_examples=gates_examples,
    )
    if settings.must_isolate and settings.backend in (
        Backend.INLINE,
        Backend.DLMOPEN,
    ):
        raise InvalidArgument(
            f"{where}: isolation REQUIRED needs backend PROCESS or AUTO, not "
            f"{settings.backend.name}"
        )
    if settings.backend is Backend.DLMOPEN and device != "cpu":
        raise InvalidArgument(
            f"{where}: backend DLMOPEN computes on the CPU only, not on {device}; use "
            "INLINE or PROCESS"
        )
    return settings


def _checked_logging(
    name: str, config: logging_config_pb2.LoggingConfig
) -> logging_config_pb2.LoggingConfig:
    where = f"model {name}: logging_config"
    if config.HasField("custom_logging_config"):
        raise Unimplemented(f"{where}.custom_logging_config is not supported")
    collector = config.log_collector_config
    if collector.type not in ("", "file"):
        raise InvalidArgument(
            f"{where}: Cannot find LogCollector::Factory for type: {collector.type}; "
            '"file" writes TFRecord files'
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
    _check_rate(f"{where}.sampling_config", sampling.sampling_rate)
    for each in sampling.per_task_sampling_configs:
        place = f"{where}.sampling_config.per_task_sampling_configs"
        _check_rate(place, each.sampling_rate)
    return config


def _check_rate(where: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise InvalidArgument(f"{where}.sampling_rate must be in 0..1: {rate}")


def _set_float(message: ProtoMessage, field: str) -> float | None:
    return float(getattr(message, field)) if message.HasField(field) else None


def _require_shares(where: str, message: ProtoMessage, fields: Iterable[str]) -> None:
    for field in fields:
        value = _set_float(message, field)
        if value is not None:
            _require_share(f"{where}.{field}", value)


def _require_share(where: str, value: float) -> None:
    if not 0 <= value <= 1:  # also refuses NaN
        raise InvalidArgument(f"{where} must be between 0 and 1: {value}")
