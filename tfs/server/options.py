"""What ``tfs serve`` can be told, one field per flag, checked on creation.

Names and defaults follow TensorFlow Serving's flags (model_servers/main.cc) where
it has one of the same meaning; ``tfs/cli/serving/serve_arguments.py`` reads them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.handlers.admin_access import DEFAULT_ADMIN_FROM, AdminFrom, read_admin_from
from tfs.runtime.placement import Backend
from tfs.server.flag import (
    Flag,
    flag,
    read_at_least_0,
    read_micros,
    read_milliseconds,
    read_poll_period,
    read_poll_wait,
    read_socket_path,
)
from tfs.server.model_settings import MAX_INTERPRETERS, MAX_INTRA_OP_THREADS

DEFAULT_PORT: Final = 8500
MIN_RECEIVE_BYTES: Final = 1 << 20

_MAX_PROBE_BUDGET_S: Final = 600
"""A measurement uses all of its budget, so without a limit a version might never load."""


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
    """Everything that is fixed when the server starts, each with its flag. Immutable."""

    port: int = flag(
        DEFAULT_PORT, "gRPC TCP port; 0 opens none (default 8500)", least=0, most=65535
    )
    grpc_host: str = flag(
        "0.0.0.0",
        "address to listen on, or a name: all of its addresses (default 0.0.0.0)",
    )
    any_port: bool = flag(False, "listen on a free TCP port instead")
    grpc_socket_path: str = flag(
        "", "also listen on this Unix socket", read=read_socket_path, is_absolute=True
    )
    source: SourceKind = flag(
        SourceKind.FILE_SYSTEM,
        "file_system, or rpc: a fleet says what to serve (needs --state_dir)",
    )
    grpc_transport: TransportKind = flag(
        TransportKind.AUTO,
        "auto (express), express, or grpcio: Google's library, for trusted networks",
    )
    grpc_channel_arguments: str = flag(
        "", "k=v,k=v: gRPC's channel arguments; express takes six of them"
    )
    ssl_config_file: str = flag(
        "",
        "text SSLConfig with PEM contents: TLS on the TCP port; re-read when it "
        "changes",
    )
    max_message_bytes: int = flag(
        2**31 - 1, "largest request and reply", least=1, most=2**31 - 1
    )
    max_receive_bytes: int = flag(
        256 << 20,
        "express: bytes of requests and answers that clients can make the server "
        "keep; what has no room waits its turn or is refused",
        least=MIN_RECEIVE_BYTES,
    )
    model_name: str = flag("default", "single model: its name (default default)")
    model_base_path: str = flag(
        "", "single model: absolute path of the directory that holds its versions"
    )
    model_config_file: str = flag("", "text ModelServerConfig; re-read when it changes")
    model_repository: str = flag(
        "", "serve every model of this directory, as they come and go"
    )
    remote_cache_dir: str = flag(
        "",
        "where versions behind URLs are copied to (default: a temporary directory)",
        is_absolute=True,
    )
    remote_cache_max_bytes: int = flag(
        0, "copies that nothing uses are removed beyond this; 0 is no bound", least=0
    )
    model_config_file_poll_wait_s: float = flag(
        1.0,
        "how often the config file is looked at (default 1)",
        name="model_config_file_poll_wait_seconds",
        read=read_poll_wait,
        is_above_0=True,
    )
    file_system_poll_wait_s: float = flag(
        1.0,
        "how often base paths are listed where there are no events; 0 and less: at "
        "the start, when a configuration is reloaded and on SIGHUP alone (default 1)",
        name="file_system_poll_wait_seconds",
        read=read_poll_period,
        least=0,
    )
    num_load_threads: int = flag(0, "parallel loads; 0 chooses", least=0)
    num_unload_threads: int = flag(0, "parallel unloads; 0 chooses", least=0)
    enable_model_warmup: bool = flag(
        True,
        "replay a version's recorded requests before it is available (default true)",
    )
    num_warmup_iterations: int = flag(
        0,
        "how often each recorded request is replayed; 0 is once (default 0)",
        name="num_request_iterations_for_warmup",
        read=read_at_least_0,
        least=0,
    )
    max_num_load_retries: int = flag(
        5, "tries after a failed load (default 5)", least=0
    )
    load_retry_interval_s: float = flag(
        1.0,
        "pause before the first retry of a load; it doubles, up to 60 s (default "
        "1000000)",
        name="load_retry_interval_micros",
        read=read_micros,
        least=0,
    )
    serialize_as_tensor_content: bool = flag(
        False,
        "Predict outputs as tensor_content instead of typed fields",
        name="enable_serialization_as_tensor_content",
    )
    check_signature_method: bool = flag(
        False,
        "Classify and Regress insist on a signature's method; otherwise features suffice",
        name="enable_signature_method_name_check",
    )
    unload_when_empty: bool = flag(
        False, "an emptied base path unloads the last version"
    )
    drain_timeout_s: float = flag(
        30.0, "how long SIGTERM waits for requests in flight (default 30)", least=0
    )
    drain_wait_s: float = flag(
        0.0,
        "how long before that requests are still taken, while health says "
        "NOT_SERVING, so that balancers hear of it (default 0)",
        least=0,
    )
    max_connection_age_s: float = flag(
        0.0,
        "after about so long a connection is drained, so that its client comes to "
        "another server behind a balancer; 0 for never (default 0)",
        least=0,
    )
    max_in_flight: int = flag(
        10_000, "requests worked on at the same time (default 10000)", least=1
    )
    max_in_flight_per_model: int = flag(
        0,
        "requests worked on at the same time for each model; 0 is no such limit "
        "(default 0)",
        least=0,
    )
    num_decode_threads: int = flag(
        2, "large or unusual requests decoded at the same time (default 2)", least=1
    )
    max_queued_decodes: int = flag(
        256,
        "large or unusual requests that may wait or be decoded (default 256)",
        least=1,
    )
    max_filled_bytes: int = flag(
        16 << 20,
        "most bytes of elements that one value of a request stands for (default 16 "
        "MiB)",
        least=0,
    )
    state_dir: str = flag("", "where overrides and profiles are kept")
    model_memory_limit_bytes: int = flag(
        0, "main memory for all models; a version that does not fit is refused", least=0
    )
    session_parallelism: int = flag(
        0,
        "threads of one model call; 0 is one (default 0)",
        name="tensorflow_session_parallelism",
        least=0,
        most=MAX_INTRA_OP_THREADS,
    )
    intra_op_parallelism: int = flag(
        0,
        "the same; at most one of the two (default 0)",
        name="tensorflow_intra_op_parallelism",
        least=0,
        most=MAX_INTRA_OP_THREADS,
    )
    interpreter_backend: Backend = flag(
        Backend.AUTO,
        "where models run: auto, front, inline, process or dlmopen (default auto)",
    )
    num_interpreters: int = flag(
        0,
        "processes (or private Pythons) that run models; 0 is one per core, of as "
        "many as a CPU quota leaves (default 0)",
        least=0,
        most=MAX_INTERPRETERS,
    )
    interpreter_call_timeout_s: float = flag(
        30.0,
        "a call in a process interpreter that takes longer ends it; a private Python "
        "(dlmopen) takes no more calls then (default 30)",
        is_above_0=True,
    )
    worker_memory_limit_bytes: int = flag(
        0,
        "private memory a process interpreter may add; 0 is no limit (default 0)",
        least=0,
    )
    worker_nice: int = flag(
        0,
        "niceness added to process interpreters, 0 to 19 (default 0)",
        least=0,
        most=19,
    )
    worker_user: str = flag(
        "", "user that process interpreters run as (name, uid or uid:gid); needs root"
    )
    worker_spin_us: int = flag(
        0,
        "how long a process interpreter looks for the next call, and the server for "
        "a reply that is due, before they sleep; keeps cores busy, so only for hosts "
        "with cores to spare (default 0)",
        least=0,
        most=1000,
    )
    load_probe_budget_s: float = flag(
        0.5,
        "how long measuring a version may take, beside the few calls that show "
        "whether its requests may be joined; 0 measures nothing (default 0.5)",
        least=0,
        most=_MAX_PROBE_BUDGET_S,
    )
    enable_batching: bool = flag(True, "join concurrent requests (default true)")
    batching_parameters_file: str = flag(
        "", "text BatchingParameters for versions without their own"
    )
    request_log_max_files: int = flag(
        0,
        "files kept of each request log; the oldest are deleted first; 0 keeps all",
        least=0,
    )
    request_log_max_bytes: int = flag(
        0, "bytes of all files of a request log together; 0 is no limit", least=0
    )
    request_log_dc: str = flag(
        "", "the data centre this server is in, for per_task_sampling_configs"
    )
    request_log_task_index: int = flag(
        -1,
        "number of this server in its data centre, for per_task_sampling_configs; -1 "
        "is none",
        least=-1,
    )
    monitoring_config_file: str = flag(
        "",
        "text MonitoringConfig: where metrics are on --rest_api_port, beside /metrics; "
        "by default at /monitoring/prometheus/metrics",
    )
    rest_api_port: int = flag(
        0,
        "HTTP port of the REST API, /metrics, /healthz and /readyz; 0 opens none "
        "(default 0)",
        least=0,
        most=65535,
    )
    rest_api_socket_path: str = flag(
        "", "the same on this Unix socket, too", read=read_socket_path, is_absolute=True
    )
    rest_api_tls: bool = flag(
        False,
        "TLS on --rest_api_port, with the certificate of --ssl_config_file (default "
        "false)",
    )
    rest_api_timeout_s: float = flag(
        30.0,
        "deadline of each HTTP request, in milliseconds; 0 for none (default 30000)",
        name="rest_api_timeout_in_ms",
        read=read_milliseconds,
        least=0,
    )
    rest_api_enable_cors_support: bool = flag(
        False, "whether pages of other origins may use the REST API (default false)"
    )
    max_json_bytes: int = flag(
        64 << 20,
        "longest body in JSON, which holds up all else for some 7 ms a megabyte "
        "(default 64 MiB)",
        least=1,
    )
    admin_socket_path: str = flag(
        "",
        "Unix socket (0600) for operating the server: status, canary, rollback, reload",
        read=read_socket_path,
        is_absolute=True,
    )
    admin_from: frozenset[AdminFrom] = flag(
        DEFAULT_ADMIN_FROM,
        "who may operate the server beside that socket: loopback,socket,mtls,any "
        "(default loopback,socket)",
        read=read_admin_from,
    )
    allow_model_code: bool = flag(
        True, "whether platforms that execute model code may load (default true)"
    )

    def __post_init__(self) -> None:
        for each in FLAGS:
            each.check(getattr(self, each.field))
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
    def loads_in_processes(self) -> bool:
        """Whether versions run or are measured in processes."""
        in_processes = self.interpreter_backend in (Backend.AUTO, Backend.PROCESS)
        return in_processes or self.load_probe_budget_s > 0

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


FLAGS: Final[tuple[Flag, ...]] = tuple(
    replace(flag, name=flag.name or option.name, field=option.name)
    for option in fields(ServerOptions)
    for flag in (option.metadata["flag"],)
)
"""Every flag with a meaning, in the order of the page."""
