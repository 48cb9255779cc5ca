"""tfs.server.options and tfs.cli.serving.serve_arguments, which reads by it."""

from __future__ import annotations

import argparse
import logging
import os
import re

import pytest

from managers.versions.version import RetryOptions
from tfs.cli.main import main
from tfs.cli.serving.serve_arguments import (
    REFUSED,
    WITHOUT_MEANING,
    add_flags,
    read_flags,
)
from tfs.core.errors import InvalidArgument, Unavailable, Unimplemented
from tfs.server.flag import Flag
from tfs.server.options import FLAGS, ServerOptions, TransportKind

MODEL = "--model_base_path=/models/digits"

# tensorflow-serving.md lists these for the upstream binary (2.21).
UPSTREAM_FLAGS = [
    "port",
    "grpc_socket_path",
    "rest_api_port",
    "rest_api_num_threads",
    "rest_api_timeout_in_ms",
    "rest_api_enable_cors_support",
    "enable_batching",
    "allow_version_labels_for_unavailable_models",
    "batching_parameters_file",
    "enable_per_model_batching_parameters",
    "model_config_file",
    "model_config_file_poll_wait_seconds",
    "model_name",
    "model_base_path",
    "num_load_threads",
    "num_unload_threads",
    "max_num_load_retries",
    "load_retry_interval_micros",
    "file_system_poll_wait_seconds",
    "flush_filesystem_caches",
    "tensorflow_session_parallelism",
    "tensorflow_intra_op_parallelism",
    "tensorflow_inter_op_parallelism",
    "tensorflow_session_config_file",
    "use_alts_credentials",
    "ssl_config_file",
    "platform_config_file",
    "per_process_gpu_memory_fraction",
    "saved_model_tags",
    "grpc_channel_arguments",
    "grpc_max_threads",
    "enable_model_warmup",
    "num_request_iterations_for_warmup",
    "monitoring_config_file",
    "remove_unused_fields_from_bundle_metagraph",
    "prefer_tflite_model",
    "num_tflite_pools",
    "num_tflite_interpreters_per_pool",
    "enable_signature_method_name_check",
    "xla_cpu_compilation_enabled",
    "xla_gpu_compilation_enabled",
    "enable_profiler",
    "thread_pool_factory_config_file",
    "mixed_precision",
    "skip_initialize_tpu",
    "enable_grpc_healthcheck_service",
    "enable_serialization_as_tensor_content",
    "version",
]


def read(*words: str) -> ServerOptions:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="store_true")
    add_flags(parser)
    return read_flags(parser.parse_args(words))


@pytest.mark.parametrize("name", UPSTREAM_FLAGS)
def test_every_upstream_flag_is_known(name: str) -> None:
    """An unchanged TensorFlow Serving start script names no unknown flag."""
    known = {flag.name for flag in FLAGS} | REFUSED.keys() | WITHOUT_MEANING
    assert name in known | {"version"}


def test_no_flag_is_listed_twice() -> None:
    """One flag has one meaning."""
    names = [*(flag.name for flag in FLAGS), *REFUSED, *WITHOUT_MEANING]
    assert len(names) == len(set(names))


def test_every_option_has_one_flag() -> None:
    """One option field is set by exactly one flag."""
    fields = sorted(flag.field for flag in FLAGS)
    assert fields == sorted(ServerOptions.__dataclass_fields__)


def test_both_spellings_set_the_value() -> None:
    """``--flag=value`` and ``--flag value`` mean the same."""
    assert read(MODEL, "--port=9000").port == read(MODEL, "--port", "9000").port == 9000


@pytest.mark.parametrize(
    ("word", "expected"),
    [("", True), ("=true", True), ("=1", True), ("=false", False), ("=0", False)],
)
def test_a_boolean_takes_upstreams_words(word: str, expected: bool) -> None:
    """A boolean flag alone is true; true, false, 1 and 0 are understood."""
    options = read(MODEL, f"--unload_when_empty{word}")
    assert options.unload_when_empty is expected


def test_a_boolean_has_an_opposite() -> None:
    """``--noflag``, as absl's flags have it; the last of both counts."""
    assert not read(MODEL, "--noenable_batching").enable_batching
    assert read(MODEL, "--noenable_batching", "--enable_batching").enable_batching
    assert not read(MODEL, "--enable_batching", "--noenable_batching").enable_batching
    read(MODEL, "--noenable_profiler", "--nouse_alts_credentials")
    with pytest.raises(SystemExit):
        read(MODEL, "--noport")


def test_a_socket_of_a_relative_path_lies_where_the_server_was_started() -> None:
    """A relative socket path is relative to the working directory, as upstream."""
    found = read(MODEL, "--grpc_socket_path=tfs.sock").grpc_socket_path
    assert found == f"{os.getcwd()}/tfs.sock"
    assert read(MODEL, "--grpc_socket_path=").grpc_socket_path == ""


@pytest.mark.parametrize("word", ["--version", "--version=true", "--version=1"])
def test_versions_are_asked_for_in_upstreams_words(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag is a boolean like the others."""
    assert main(["serve", word]) == 0
    assert "torch" in capsys.readouterr().out
    assert main(["serve", "--version=false"]) == 1  # and nothing to serve
    assert main(["serve", "--version=soon"]) == 1


def test_units_are_converted() -> None:
    """Microseconds on the command line are seconds in the options."""
    options = read(MODEL, "--load_retry_interval_micros=1500000")
    assert options.load_retry_interval_s == 1.5


def test_a_first_retry_comes_within_seconds() -> None:
    """Pauses double from a second on unless somebody wants longer ones (issue 1086)."""
    options = read(MODEL)
    retry = RetryOptions(options.max_num_load_retries, options.load_retry_interval_s)
    pauses_s = [retry.pause_s(n, Unavailable("later")) for n in range(1, 7)]
    assert pauses_s == [1, 2, 4, 8, 16, None]


def test_a_transport_is_chosen_by_name() -> None:
    """``--grpc_transport`` takes the names of the transports."""
    assert read(MODEL, "--grpc_transport=grpcio").grpc_transport is TransportKind.GRPCIO


@pytest.mark.parametrize(
    "word",
    ["--port=x", "--unload_when_empty=maybe", "--grpc_transport=http3"],
)
def test_a_bad_value_names_the_flag(word: str) -> None:
    """What is wrong with a flag is said with its name and value."""
    with pytest.raises(InvalidArgument, match=word):
        read(MODEL, word)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--port=abc", "--port=abc: expected a whole number"),
        ("--drain_timeout_s=soon", "--drain_timeout_s=soon: expected a number"),
        (
            "--interpreter_backend=x",
            "x: expected one of auto, front, inline, process.*",
        ),
    ],
)
def test_a_bad_value_is_told_what_would_be_good(word: str, expected: str) -> None:
    """The message says which values are good, in an operator's words, not Python's."""
    with pytest.raises(InvalidArgument, match=expected):
        read(MODEL, word)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_no_flag_answers_in_pythons_words(flag: Flag) -> None:
    """Whatever reads its value, what is refused is named once, with what would be good."""
    message = "expected anything"
    try:
        read(MODEL, f"--{flag.name}=soon")
    except InvalidArgument as error:
        message = error.message
    assert re.search("expected|none of|must be", message)
    assert message.count(f"--{flag.name}") <= 1


def test_upstreams_values_for_no_polling_are_taken() -> None:
    """A config file is looked at all the same: an edit must not be useless."""
    for value in ("0", "-1"):
        read_of = read(MODEL, f"--model_config_file_poll_wait_seconds={value}")
        assert read_of.model_config_file_poll_wait_s == 1.0
        read_of = read(MODEL, f"--file_system_poll_wait_seconds={value}")
        assert read_of.file_system_poll_wait_s == 0.0


def test_a_flag_without_meaning_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """Flags that mean nothing here are accepted with one line for all of them."""
    with caplog.at_level(logging.WARNING):
        read(MODEL, "--rest_api_num_threads=2", "--enable_profiler")
    assert [record.getMessage() for record in caplog.records] == [
        "event=flags_without_meaning ignored=enable_profiler,rest_api_num_threads"
    ]


def test_a_flag_that_would_do_harm_if_ignored_is_refused() -> None:
    """What keeps others out is never ignored: it would serve plain text instead."""
    with pytest.raises(Unimplemented, match="use_alts_credentials"):
        read(MODEL, "--use_alts_credentials")


def test_such_a_flag_set_to_false_is_fine() -> None:
    """Switching off what the server does not have asks for nothing."""
    options = read(MODEL, "--use_alts_credentials=false")
    assert options.model_base_path == "/models/digits"


def test_threads_of_a_call_come_from_either_flag() -> None:
    """TensorFlow Serving's flags for it exclude each other, as there."""
    assert read(MODEL).intra_op_threads == 1
    assert read(MODEL, "--tensorflow_session_parallelism=3").intra_op_threads == 3
    assert read(MODEL, "--tensorflow_intra_op_parallelism=2").intra_op_threads == 2
    for other in ("intra", "inter"):
        parts = [f"--tensorflow_{other}_op_parallelism={num}" for num in (0, 2)]
        read(MODEL, "--tensorflow_session_parallelism=3", parts[0])
        with pytest.raises(InvalidArgument, match=f"{other}.*exclude each other"):
            read(MODEL, "--tensorflow_session_parallelism=3", parts[1])


def test_an_unknown_flag_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped flag is an error, not a positional that is skipped."""
    with pytest.raises(SystemExit):
        read(MODEL, "--prot=8500")
    assert "--prot" in capsys.readouterr().err
