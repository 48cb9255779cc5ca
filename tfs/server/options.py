"""What ``tfs serve`` can be told, one field per flag, checked on creation.

Names and defaults follow TensorFlow Serving's flags (model_servers/main.cc) where
it has one of the same meaning; ``tfs/cli/flags.py`` maps the words to the fields.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.handlers.admin_access import DEFAULT_ADMIN_FROM, AdminFrom
from tfs.runtime.placement import Backend
from tfs.server.model_settings import MAX_INTERPRETERS, MAX_INTRA_OP_THREADS

DEFAULT_PORT: Final = 8500
MIN_RECEIVE_BYTES: Final = 1 << 20

_ANY: Final = math.inf
_MAX_PROBE_BUDGET_S: Final = 600
"""A measurement uses all of its budget, so without a limit a version might never load."""
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "port": (0, 65_535),
    "rest_api_port": (0, 65_535),
    "rest_api_timeout_s": (0, _ANY),
    "drain_wait_s": (0, _ANY),
    "max_connection_age_s": (0, _ANY),
    "max_json_bytes": (1, _ANY),
    "max_message_bytes": (1, 2**31 - 1),
    "max_receive_bytes": (MIN_RECEIVE_BYTES, _ANY),
    "remote_cache_max_bytes": (0, _ANY),
    "num_load_threads": (0, _ANY),
    "num_unload_threads": (0, _ANY),
    "num_warmup_iterations": (0, _ANY),
    "max_num_load_retries": (0, _ANY),
    "load_retry_interval_s": (0, _ANY),
    "drain_timeout_s": (0, _ANY),
    "max_in_flight": (1, _ANY),
    "max_in_flight_per_model": (0, _ANY),
    "num_decode_threads": (1, _ANY),
    "max_queued_decodes": (1, _ANY),
    "max_filled_bytes": (0, _ANY),
    "model_memory_limit_bytes": (0, _ANY),
    "session_parallelism": (0, MAX_INTRA_OP_THREADS),
    "intra_op_parallelism": (0, MAX_INTRA_OP_THREADS),
    "num_interpreters": (0, MAX_INTERPRETERS),
    "worker_memory_limit_bytes": (0, _ANY),
    "worker_nice": (0, 19),
    "worker_spin_us": (0, 1000),
    "file_system_poll_wait_s": (0, _ANY),
    "load_probe_budget_s": (0, _MAX_PROBE_BUDGET_S),
    "request_log_max_files": (0, _ANY),
    "request_log_max_bytes": (0, _ANY),
    "request_log_task_index": (-1, _ANY),
}
"""Range of each number, both ends included, by field."""

_FLAGS: Final[Mapping[str, str]] = {
    "model_config_file_poll_wait_s": "model_config_file_poll_wait_seconds",
    "file_system_poll_wait_s": "file_system_poll_wait_seconds",
    "load_retry_interval_s": "load_retry_interval_micros",
    "session_parallelism": "tensorflow_session_parallelism",
    "intra_op_parallelism": "tensorflow_intra_op_parallelism",
}
"""Flags whose name differs from the field they set; for messages."""


class SourceKind(enum.Enum):
    """Where the server learns which models and versions to serve."""

    FILE_SYSTEM = "file_system"
    RPC = "rpc"


class TransportKind(enum.Enum):
    """Which implementation speaks gRPC."""

    AUTO = "auto"
    GRPCIO = "grpcio"
    EXPRESS = "express"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that is fixed when the server starts. Immutable.

    Attributes:
        grpc_host: Address or name of the interface on which ``port`` is opened.
        port: gRPC TCP port; 0 opens none, unless ``any_port`` is set.
        any_port: Whether a free TCP port is opened instead; the log says which.
        grpc_socket_path: Absolute path of a Unix socket to listen on too; "" is none.
        grpc_transport: Which implementation speaks gRPC.
        ssl_config_file: File with a text ``SSLConfig``, for TLS on the TCP port; "" for
            plain text. It is read again when it changes. The Unix socket is never
            encrypted, as in TensorFlow Serving.
        grpc_channel_arguments: gRPC's channel arguments, as "key=value,key=value".
        max_message_bytes: Size of the largest request and of the largest reply.
        max_receive_bytes: Express only: memory that clients can make the server take:
            requests on their way in or worked on, with answers as long, and answers that
            wait for their clients. What there is no room for waits its turn or is
            refused; a request of more than seven eighths of it always is.
        source: RPC serves what a fleet's synchronizer says, and names no models itself.
        model_name: Single-model mode: the name of the model.
        model_base_path: Single-model mode: absolute path of the directory of its
            versions.
        model_config_file: File with a text ``ModelServerConfig``; replaces single-model
            mode.
        model_repository: Absolute path or URL of a directory of models, each served
            under its directory's name as it comes and goes.
        remote_cache_dir: Where versions behind URLs are copied to; "" is a temporary
            directory.
        remote_cache_max_bytes: Once the copies take more than this, those that are not
            in use are removed; 0 for no limit.
        model_config_file_poll_wait_s: Seconds between two looks at that file.
        file_system_poll_wait_s: Seconds between two listings of the base paths on file
            systems without events; 0 lists them once at the start and after each new
            config.
        num_load_threads: Most versions that load at the same time; 0 lets the server
            choose.
        num_unload_threads: Most versions that unload at the same time; 0 lets the
            server choose.
        enable_model_warmup: Whether a version's recorded requests are replayed before
            it becomes available.
        num_warmup_iterations: How many times each of these requests is replayed; 0
            means once.
        max_num_load_retries: How many times a failed load is tried again.
        load_retry_interval_s: Pause before the first of these tries; it doubles, up to
            60 s.
        serialize_as_tensor_content: Whether Predict's outputs are sent as raw
            ``tensor_content`` and not in typed fields.
        check_signature_method: Whether Classify and Regress insist on the signature's
            method; otherwise a signature with tf.Example features is enough.
        unload_when_empty: Whether an existing base path without versions unloads
            the last one.
        drain_timeout_s: How long SIGTERM waits for requests in flight.
        drain_wait_s: How long before that the server still takes requests, while health
            and readiness say already that it is not ready.
        max_connection_age_s: After about so long connections are drained, so that
            clients of a balancer come to other servers, too; 0 for never.
        max_in_flight: Most requests in flight at the same time; more are refused with
            UNAVAILABLE.
        max_in_flight_per_model: Most requests in flight for each model; 0 for no limit
            but the server's.
        num_decode_threads: Threads that decode large or unusual requests, one request
            each.
        max_queued_decodes: Most such requests that may wait for these threads or be
            decoded.
        max_filled_bytes: Most bytes of elements that a request of Predict may leave to
            the server to fill in, because one value stands for all.
        state_dir: Where overrides and profiles are kept; "" keeps them in memory.
        model_memory_limit_bytes: Main memory that all models may use together; a
            version that does not fit is not loaded, and the others go on serving. 0 for
            no limit.
        session_parallelism: Threads that one call of a model uses; 0 means one. A
            model's own ``runtime`` config takes precedence.
        intra_op_parallelism: The same, by another flag; only one of the two may be set.
        interpreter_backend: Where models run: AUTO measures each version.
        num_interpreters: Processes (and in-process threads) that run models; 0 for one
            per core, or as many as a CPU quota allows.
        interpreter_call_timeout_s: A call in a process interpreter that takes longer
            (or 10 times its usual time, if that is more) ends the interpreter; a
            private Python cannot be ended, and takes no more calls.
        worker_memory_limit_bytes: Private memory that a process interpreter may use
            beyond what it starts with, not counting weights; a call that needs more
            fails. 0 for no limit.
        worker_nice: Added to the CPU niceness of process interpreters, 0 to 19.
        worker_user: The user that process interpreters run as, "name", "uid" or
            "uid:gid"; the server must run as root then. "" is the server's own user.
        worker_spin_us: For how many microseconds a process interpreter polls for its
            next call, and the loop for a reply that is due, before they sleep; 0 to
            1000.
        spare_worker: Whether a process is kept ready: one interpreter more than are
            used, while any is used. None is kept if the memory of models is limited.
        load_probe_budget_s: How long measuring a version of unknown code may take;
            0 measures nothing.
        enable_batching: Whether concurrent requests are joined.
        batching_parameters_file: File with a text ``BatchingParameters``, for versions
            without a ``batching_params.pbtxt`` of their own; "" batches them as
            measured.
        request_log_max_files: Files kept of each request log; 0 keeps all.
        request_log_max_bytes: Most bytes that the files of one request log take
            together; 0 for no limit.
        request_log_dc: The data centre of this server, for ``per_task_sampling_configs``.
        request_log_task_index: The number of this server in that data centre; -1 if it
            has none.
        monitoring_config_file: File with a text ``MonitoringConfig``, which enables the
            page of metrics and gives its path; "" for no page.
        rest_api_port: HTTP port of the REST API, on ``grpc_host``; 0 opens none.
        rest_api_socket_path: Absolute path of a Unix socket for the same; "" is none.
        rest_api_tls: Whether that port speaks TLS, with what ``ssl_config_file`` has.
        rest_api_timeout_s: Deadline of each request on it.
        rest_api_enable_cors_support: Whether pages of other origins may use it.
        max_json_bytes: Longest body in JSON.
        admin_socket_path: Absolute path of a Unix socket (mode 0600) for operating
            the server alone; "" is none.
        admin_from: Which callers may also operate the server over the other sockets.
        allow_model_code: Whether platforms that execute a model's code may load.

    """

    grpc_host: str = "0.0.0.0"
    port: int = DEFAULT_PORT
    any_port: bool = False
    grpc_socket_path: str = ""
    grpc_transport: TransportKind = TransportKind.AUTO
    ssl_config_file: str = ""
    grpc_channel_arguments: str = ""
    max_message_bytes: int = 2**31 - 1
    max_receive_bytes: int = 256 << 20
    source: SourceKind = SourceKind.FILE_SYSTEM
    model_name: str = "default"
    model_base_path: str = ""
    model_config_file: str = ""
    model_repository: str = ""
    remote_cache_dir: str = ""
    remote_cache_max_bytes: int = 0
    model_config_file_poll_wait_s: float = 1.0
    file_system_poll_wait_s: float = 1.0
    num_load_threads: int = 0
    num_unload_threads: int = 0
    enable_model_warmup: bool = True
    num_warmup_iterations: int = 0
    max_num_load_retries: int = 5
    load_retry_interval_s: float = 1.0
    serialize_as_tensor_content: bool = False
    check_signature_method: bool = False
    unload_when_empty: bool = False
    drain_timeout_s: float = 30.0
    drain_wait_s: float = 0.0
    max_connection_age_s: float = 0.0
    max_in_flight: int = 10_000
    max_in_flight_per_model: int = 0
    num_decode_threads: int = 2
    max_queued_decodes: int = 256
    max_filled_bytes: int = 16 << 20
    state_dir: str = ""
    model_memory_limit_bytes: int = 0
    session_parallelism: int = 0
    intra_op_parallelism: int = 0
    interpreter_backend: Backend = Backend.AUTO
    num_interpreters: int = 0
    interpreter_call_timeout_s: float = 30.0
    worker_memory_limit_bytes: int = 0
    worker_nice: int = 0
    worker_user: str = ""
    worker_spin_us: int = 0
    spare_worker: bool = True
    load_probe_budget_s: float = 0.5
    enable_batching: bool = True
    batching_parameters_file: str = ""
    request_log_max_files: int = 0
    request_log_max_bytes: int = 0
    request_log_dc: str = ""
    request_log_task_index: int = -1
    monitoring_config_file: str = ""
    rest_api_port: int = 0
    rest_api_socket_path: str = ""
    rest_api_tls: bool = False
    rest_api_timeout_s: float = 30.0
    rest_api_enable_cors_support: bool = False
    max_json_bytes: int = 64 << 20
    admin_socket_path: str = ""
    admin_from: frozenset[AdminFrom] = DEFAULT_ADMIN_FROM
    allow_model_code: bool = True

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            allowed = f"at least {least}" if most == _ANY else f"in {least}..{most}"
            _require(
                least <= value <= most, f"{_flag(name)} must be {allowed}: {value}"
            )
        for name in ("model_config_file_poll_wait_s", "interpreter_call_timeout_s"):
            value = getattr(self, name)
            _require(value > 0, f"{_flag(name)} must be positive: {value}")
        for name in (
            "grpc_socket_path",
            "rest_api_socket_path",
            "admin_socket_path",
            "remote_cache_dir",
        ):
            path: str = getattr(self, name)
            _require(
                not path or path.startswith("/"),
                f"{_flag(name)} must be absolute: {path}",
            )
        _require(
            bool(self.port or self.any_port or self.grpc_socket_path),
            "At least one of --port or --grpc_socket_path must be set.",
        )
        named = self.model_base_path or self.model_config_file or self.model_repository
        if self.source is SourceKind.RPC:
            _require(
                not named and bool(self.state_dir),
                "--source=rpc needs a --state_dir, to keep what the fleet says, and "
                "takes no --model_base_path, --model_config_file or --model_repository.",
            )
        _require(
            bool(named) or self.source is SourceKind.RPC,
            "Both --model_base_path and --model_config_file are empty! Name a "
            "directory of versions (--model_name=M --model_base_path=/abs/path), a "
            "config file, or a --model_repository.",
        )
        _require(
            bool(self.ssl_config_file) or not self.rest_api_tls,
            "--rest_api_tls needs the certificate of --ssl_config_file.",
        )
        _require(
            not (self.model_repository and self.model_config_file),
            "--model_repository and --model_config_file exclude each other.",
        )
        _require(
            self.enable_batching or not self.batching_parameters_file,
            "--batching_parameters_file is set without setting --enable_batching to "
            "true.",
        )
        _require(
            not (self.session_parallelism and self.intra_op_parallelism),
            "--tensorflow_session_parallelism and --tensorflow_intra_op_parallelism "
            "exclude each other.",
        )
        parse_channel_arguments(self.grpc_channel_arguments)

    @property
    def intra_op_threads(self) -> int:
        """Threads of one call of a model that says nothing itself."""
        return self.session_parallelism or self.intra_op_parallelism or 1


def parse_channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    """Reads "k=v,k=v"; a numeric value becomes an int, as in TensorFlow Serving.

    Raises:
        InvalidArgument: An item has no "=".

    """
    arguments: list[tuple[str, int | str]] = []
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        _require(
            bool(key and equals),
            f"--grpc_channel_arguments: bad item {item!r}, expected KEY=VALUE",
        )
        try:
            arguments.append((key, int(value)))
        except ValueError:
            arguments.append((key, value))
    return tuple(arguments)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgument(message)


def _flag(field: str) -> str:
    return f"--{_FLAGS.get(field, field)}"
