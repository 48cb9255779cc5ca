"""The flags of ``tfs serve``: TensorFlow Serving's names, and ours.

One table says what each flag sets; ``serve_arguments`` reads command lines with it.
Flags of TensorFlow Serving that have no meaning here are accepted with one warning
line, so that existing start scripts work; an unknown flag is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import InvalidArgument
from tfs.handlers.admin_access import AdminFrom, read_admin_from
from tfs.runtime.placement import Backend
from tfs.server.options import SourceKind, TransportKind

WHOLE_NUMBER: Final = "expected a whole number"
NUMBER: Final = "expected a number"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with a meaning.

    Attributes:
        name: Without dashes.
        field: The field of :class:`tfs.server.options.ServerOptions` it sets.
        read: Turns the text into the field's value; ValueError refuses it.
        help: One line for people.

    """

    name: str
    field: str
    read: Callable[[str], object]
    help: str


def read_bool(text: str) -> bool:
    """Reads a boolean as TensorFlow Serving's flags do; ValueError refuses it."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError(f"expected true or false, got {text!r}")


def _socket_path(text: str) -> str:
    return os.path.abspath(text) if text else ""


def _micros(text: str) -> float:
    return read_at_least_0(text) / 1e6


def _milliseconds(text: str) -> float:
    return read_at_least_0(text) / 1e3


def _poll_wait(text: str) -> float:
    # To TensorFlow Serving 0 and less mean "do not poll". An edit of the file would
    # then have no effect without anybody being told, so the default period stays.
    period_s = _number(text)
    return 1.0 if period_s <= 0 else period_s


def read_at_least_0(text: str) -> int:
    """Reads a whole number; a negative one counts as 0, as it does upstream."""
    try:
        return max(0, int(text))
    except ValueError:
        raise ValueError(WHOLE_NUMBER) from None


def _poll_period(text: str) -> float:
    period_s = _number(text)
    return 0.0 if period_s < 0 else period_s


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(NUMBER) from None


def _admin_from(text: str) -> frozenset[AdminFrom]:
    try:
        return read_admin_from(text)
    except InvalidArgument as error:
        raise ValueError(error.message) from error


FLAGS: Final[tuple[Flag, ...]] = (
    Flag("port", "port", int, "gRPC TCP port; 0 opens none (default 8500)"),
    Flag(
        "grpc_host",
        "grpc_host",
        str,
        "address to listen on, or a name: all of its addresses (default 0.0.0.0)",
    ),
    Flag("any_port", "any_port", read_bool, "listen on a free TCP port instead"),
    Flag(
        "grpc_socket_path",
        "grpc_socket_path",
        _socket_path,
        "also listen on this Unix socket",
    ),
    Flag(
        "source",
        "source",
        SourceKind,
        "file_system, or rpc: a fleet says what to serve (needs --state_dir)",
    ),
    Flag(
        "grpc_transport",
        "grpc_transport",
        TransportKind,
        "auto (express), express, or grpcio: Google's library, for trusted networks",
    ),
    Flag(
        "grpc_channel_arguments",
        "grpc_channel_arguments",
        str,
        "k=v,k=v: gRPC's channel arguments; express takes six of them",
    ),
    Flag(
        "ssl_config_file",
        "ssl_config_file",
        str,
        "text SSLConfig with PEM contents: TLS on the TCP port; re-read when it changes",
    ),
    Flag("max_message_bytes", "max_message_bytes", int, "largest request and reply"),
    Flag(
        "max_receive_bytes",
        "max_receive_bytes",
        int,
        "express: bytes of requests and answers that clients can make the server keep; "
        "what has no room waits its turn or is refused",
    ),
    Flag("model_name", "model_name", str, "single model: its name (default default)"),
    Flag(
        "model_base_path",
        "model_base_path",
        str,
        "single model: absolute path of the directory that holds its versions",
    ),
    Flag(
        "model_config_file",
        "model_config_file",
        str,
        "text ModelServerConfig; re-read when it changes",
    ),
    Flag(
        "model_repository",
        "model_repository",
        str,
        "serve every model of this directory, as they come and go",
    ),
    Flag(
        "remote_cache_dir",
        "remote_cache_dir",
        str,
        "where versions behind URLs are copied to (default: a temporary directory)",
    ),
    Flag(
        "remote_cache_max_bytes",
        "remote_cache_max_bytes",
        int,
        "copies that nothing uses are removed beyond this; 0 is no bound",
    ),
    Flag(
        "model_config_file_poll_wait_seconds",
        "model_config_file_poll_wait_s",
        _poll_wait,
        "how often the config file is looked at (default 1)",
    ),
    Flag(
        "file_system_poll_wait_seconds",
        "file_system_poll_wait_s",
        _poll_period,
        "how often base paths are listed where there are no events; 0 and less: at the "
        "start, when a configuration is reloaded and on SIGHUP alone (default 1)",
    ),
    Flag("num_load_threads", "num_load_threads", int, "parallel loads; 0 chooses"),
    Flag(
        "num_unload_threads", "num_unload_threads", int, "parallel unloads; 0 chooses"
    ),
    Flag(
        "enable_model_warmup",
        "enable_model_warmup",
        read_bool,
        "replay a version's recorded requests before it is available (default true)",
    ),
    Flag(
        "num_request_iterations_for_warmup",
        "num_warmup_iterations",
        read_at_least_0,
        "how often each recorded request is replayed; 0 is once (default 0)",
    ),
    Flag(
        "max_num_load_retries",
        "max_num_load_retries",
        int,
        "tries after a failed load (default 5)",
    ),
    Flag(
        "load_retry_interval_micros",
        "load_retry_interval_s",
        _micros,
        "pause before the first retry of a load; it doubles, up to 60 s (default 1000000)",
    ),
    Flag(
        "enable_serialization_as_tensor_content",
        "serialize_as_tensor_content",
        read_bool,
        "Predict outputs as tensor_content instead of typed fields",
    ),
    Flag(
        "enable_signature_method_name_check",
        "check_signature_method",
        read_bool,
        "Classify and Regress insist on a signature's method; otherwise features suffice",
    ),
    Flag(
        "unload_when_empty",
        "unload_when_empty",
        read_bool,
        "an emptied base path unloads the last version",
    ),
    Flag(
        "drain_timeout_s",
        "drain_timeout_s",
        float,
        "how long SIGTERM waits for requests in flight (default 30)",
    ),
    Flag(
        "drain_wait_s",
        "drain_wait_s",
        float,
        "how long before that requests are still taken, while health says NOT_SERVING, so "
        "that balancers hear of it (default 0)",
    ),
    Flag(
        "max_connection_age_s",
        "max_connection_age_s",
        float,
        "after about so long a connection is drained, so that its client comes to another "
        "server behind a balancer; 0 for never (default 0)",
    ),
    Flag(
        "max_in_flight",
        "max_in_flight",
        int,
        "requests worked on at the same time (default 10000)",
    ),
    Flag(
        "max_in_flight_per_model",
        "max_in_flight_per_model",
        int,
        "requests worked on at the same time for each model; 0 is no such limit (default 0)",
    ),
    Flag(
        "num_decode_threads",
        "num_decode_threads",
        int,
        "large or unusual requests decoded at the same time (default 2)",
    ),
    Flag(
        "max_queued_decodes",
        "max_queued_decodes",
        int,
        "large or unusual requests that may wait or be decoded (default 256)",
    ),
    Flag(
        "max_filled_bytes",
        "max_filled_bytes",
        int,
        "most bytes of elements that one value of a request stands for (default 16 MiB)",
    ),
    Flag("state_dir", "state_dir", str, "where overrides and profiles are kept"),
    Flag(
        "model_memory_limit_bytes",
        "model_memory_limit_bytes",
        int,
        "main memory for all models; a version that does not fit is refused",
    ),
    Flag(
        "tensorflow_session_parallelism",
        "session_parallelism",
        int,
        "threads of one model call; 0 is one (default 0)",
    ),
    Flag(
        "tensorflow_intra_op_parallelism",
        "intra_op_parallelism",
        int,
        "the same; at most one of the two (default 0)",
    ),
    Flag(
        "interpreter_backend",
        "interpreter_backend",
        Backend,
        "where models run: auto, front, inline, process or dlmopen (default auto)",
    ),
    Flag(
        "num_interpreters",
        "num_interpreters",
        int,
        "processes (or private Pythons) that run models; 0 is one per core, of as many "
        "as a CPU quota leaves (default 0)",
    ),
    Flag(
        "interpreter_call_timeout_s",
        "interpreter_call_timeout_s",
        float,
        "a call in a process interpreter that takes longer ends it; a private Python "
        "(dlmopen) takes no more calls then (default 30)",
    ),
    Flag(
        "worker_memory_limit_bytes",
        "worker_memory_limit_bytes",
        int,
        "private memory a process interpreter may add; 0 is no limit (default 0)",
    ),
    Flag(
        "worker_nice",
        "worker_nice",
        int,
        "niceness added to process interpreters, 0 to 19 (default 0)",
    ),
    Flag(
        "worker_user",
        "worker_user",
        str,
        "user that process interpreters run as (name, uid or uid:gid); needs root",
    ),
    Flag(
        "worker_spin_us",
        "worker_spin_us",
        int,
        "how long a process interpreter looks for the next call, and the server for a "
        "reply that is due, before they sleep; keeps cores busy, so only for hosts with "
        "cores to spare (default 0)",
    ),
    Flag(
        "spare_worker",
        "spare_worker",
        read_bool,
        "keep one process interpreter ready more than are used, for the next load or to "
        "replace one that crashed (not with --model_memory_limit_bytes; default true)",
    ),
    Flag(
        "load_probe_budget_s",
        "load_probe_budget_s",
        float,
        "how long measuring a version may take, beside the few calls that show whether "
        "its requests may be joined; 0 measures nothing (default 0.5)",
    ),
    Flag(
        "enable_batching",
        "enable_batching",
        read_bool,
        "join concurrent requests (default true)",
    ),
    Flag(
        "batching_parameters_file",
        "batching_parameters_file",
        str,
        "text BatchingParameters for versions without their own",
    ),
    Flag(
        "request_log_max_files",
        "request_log_max_files",
        int,
        "files kept of each request log; the oldest are deleted first; 0 keeps all",
    ),
    Flag(
        "request_log_max_bytes",
        "request_log_max_bytes",
        int,
        "bytes of all files of a request log together; 0 is no limit",
    ),
    Flag(
        "request_log_dc",
        "request_log_dc",
        str,
        "the data centre this server is in, for per_task_sampling_configs",
    ),
    Flag(
        "request_log_task_index",
        "request_log_task_index",
        int,
        "number of this server in its data centre, for per_task_sampling_configs; -1 is none",
    ),
    Flag(
        "monitoring_config_file",
        "monitoring_config_file",
        str,
        "text MonitoringConfig: metrics at its path, too, beside /metrics on "
        "--rest_api_port",
    ),
    Flag(
        "rest_api_port",
        "rest_api_port",
        int,
        "HTTP port of the REST API, /metrics, /healthz and /readyz; 0 opens none "
        "(default 0)",
    ),
    Flag(
        "rest_api_socket_path",
        "rest_api_socket_path",
        _socket_path,
        "the same on this Unix socket, too",
    ),
    Flag(
        "rest_api_tls",
        "rest_api_tls",
        read_bool,
        "TLS on --rest_api_port, with the certificate of --ssl_config_file (default false)",
    ),
    Flag(
        "rest_api_timeout_in_ms",
        "rest_api_timeout_s",
        _milliseconds,
        "deadline of each HTTP request, in milliseconds; 0 for none (default 30000)",
    ),
    Flag(
        "rest_api_enable_cors_support",
        "rest_api_enable_cors_support",
        read_bool,
        "whether pages of other origins may use the REST API (default false)",
    ),
    Flag(
        "max_json_bytes",
        "max_json_bytes",
        int,
        "longest body in JSON, which holds up all else for some 7 ms a megabyte (default "
        "64 MiB)",
    ),
    Flag(
        "admin_socket_path",
        "admin_socket_path",
        _socket_path,
        "Unix socket (0600) for operating the server: status, canary, rollback, reload",
    ),
    Flag(
        "admin_from",
        "admin_from",
        _admin_from,
        "who may operate the server beside that socket: loopback,socket,mtls,any (default "
        "loopback,socket)",
    ),
    Flag(
        "allow_model_code",
        "allow_model_code",
        read_bool,
        "whether platforms that execute model code may load (default true)",
    ),
)

REFUSED: Final[dict[str, str]] = {
    "use_alts_credentials": "Google's ALTS",
}
"""Flags that are refused, because ignoring them would do harm, by what they ask for."""

WITHOUT_MEANING: Final = frozenset(
    {
        "rest_api_num_threads",
        "flush_filesystem_caches",
        "tensorflow_inter_op_parallelism",
        "tensorflow_session_config_file",
        "per_process_gpu_memory_fraction",
        "saved_model_tags",
        "grpc_max_threads",
        "remove_unused_fields_from_bundle_metagraph",
        "prefer_tflite_model",
        "num_tflite_pools",
        "num_tflite_interpreters_per_pool",
        "xla_cpu_compilation_enabled",
        "xla_gpu_compilation_enabled",
        "enable_profiler",
        "thread_pool_factory_config_file",
        "mixed_precision",
        "skip_initialize_tpu",
        "enable_grpc_healthcheck_service",
        # The loop looked for the next request of a lone client; accepted for one release.
        "loop_spin_us",
        # Processes had a shared copy of weights on a GPU once; accepted for one release.
        "share_gpu_weights",
        # Platforms are detected from the files; batching has flags and files of its
        # own.
        "platform_config_file",
        # A version's batching_params.pbtxt is always read; the health service is always
        # on.
        "enable_per_model_batching_parameters",
        # A label may always be set before its version is loaded.
        "allow_version_labels_for_unavailable_models",
    }
)
"""TensorFlow Serving's flags that mean nothing here: accepted with a warning."""
