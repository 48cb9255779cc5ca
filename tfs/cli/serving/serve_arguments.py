"""Reads the arguments of ``tfs serve``, by the flags of the options."""

from __future__ import annotations

import argparse
import difflib
import logging
from collections.abc import Mapping
from typing import Final

from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.server.flag import Flag, problem_of, read_at_least_0, read_bool
from tfs.server.options import FLAGS, ServerOptions

log = logging.getLogger(__name__)

_OFF: Final = frozenset({"", "0", "false"})
"""Values by which a start script switches off a flag that is refused."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag, as ``--flag value`` and ``--flag=value``.

    Boolean flags are accepted alone too, and as ``--noflag``.
    """
    for flag in FLAGS:
        if flag.read is read_bool:
            _add_switch(parser, flag.name, flag.help, metavar="BOOL")
        else:
            parser.add_argument(
                f"--{flag.name}", metavar=_metavar(flag), help=flag.help
            )
    for name in (*REFUSED, *sorted(WITHOUT_MEANING)):
        _add_switch(parser, name, argparse.SUPPRESS)


def _add_switch(
    parser: argparse.ArgumentParser, name: str, help_: str, metavar: str | None = None
) -> None:
    """Adds ``--name``, which alone means true, and ``--noname``."""
    parser.add_argument(
        f"--{name}", nargs="?", const="true", metavar=metavar, help=help_
    )
    parser.add_argument(
        f"--no{name}",
        dest=name,
        action="store_const",
        const="false",
        help=argparse.SUPPRESS,
    )


def _metavar(flag: Flag) -> str:
    last = flag.name.rpartition("_")[2]
    if flag.read in (int, read_at_least_0) and last not in ("port", "bytes"):
        return "N"
    return last.upper()


def read_flags(arguments: argparse.Namespace) -> ServerOptions:
    """Returns the options that the flags set; warns of flags without meaning.

    Raises:
        InvalidArgument: A value is wrong; names the flag and says what is expected.
        Unimplemented: A flag asks for something that this server does not have; names it.

    """
    given = {name: text for name, text in vars(arguments).items() if text is not None}
    _refuse_unsupported(given)
    _refuse_exclusive(given)
    ignored = sorted(WITHOUT_MEANING & given.keys())
    if ignored:
        log.warning("event=flags_without_meaning ignored=%s", ",".join(ignored))
    fields = {
        flag.field: _read(flag, given[flag.name])
        for flag in FLAGS
        if flag.name in given
    }
    return ServerOptions(**fields)  # type: ignore[arg-type]  # the table's types


def _refuse_unsupported(given: Mapping[str, str]) -> None:
    for name, what in REFUSED.items():
        if given.get(name, "").lower() not in _OFF:
            raise Unimplemented(
                f"--{name}: {what} is not supported; leave the flag out"
            )


def _refuse_exclusive(given: Mapping[str, str]) -> None:
    # The one has a meaning and the other none, but a start script that names both is
    # wrong to TensorFlow Serving too.
    names = ("tensorflow_session_parallelism", "tensorflow_inter_op_parallelism")
    if all((given.get(name) or "0") != "0" for name in names):
        raise InvalidArgument(f"--{names[0]} and --{names[1]} exclude each other.")


def _read(flag: Flag, text: str) -> object:
    try:
        return flag.read(text)
    except ValueError as error:
        problem = problem_of(flag.read, error)
        raise InvalidArgument(f"--{flag.name}={text}: {problem}") from error


def is_true(text: str) -> bool:
    """Reads a boolean as TensorFlow Serving's flags do.

    Raises:
        InvalidArgument: It is none.

    """
    try:
        return read_bool(text)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def flag_meant_by(word: str) -> str | None:
    """Returns the flag that an unknown argument resembles most, if any."""
    name = word.lstrip("-").partition("=")[0].replace("-", "_").lower()
    if not word.startswith("-") or not name:
        return None
    known = [*(flag.name for flag in FLAGS), *REFUSED, *sorted(WITHOUT_MEANING)]
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"--{found[0]}" if found else None


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
        # One process more than are used was kept ready; accepted for one release.
        "spare_worker",
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
"""Flags that mean nothing here, TensorFlow Serving's and former ones: accepted with a warning."""
