"""``tfs config`` and ``tfs reload``: checks, gives, shows and resets configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import Subparsers
from tfs.cli.connection import add_admin_arguments, answer
from tfs.cli.operating.model_table import apply_lines, outcome_lines
from tfs.cli.printing import emit, notes_lines
from tfs.core.errors import Code

if TYPE_CHECKING:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb
    from tfs.server.model_settings import ModelSettings

_UNKNOWN: Final = int(Code.UNKNOWN)


def add_parser(subparsers: Subparsers) -> None:
    """Adds both commands."""
    reload = subparsers.add_parser(
        "reload",
        help="give a running server another configuration",
        description="Makes FILE the base of the configuration, all or nothing, and "
        "waits until its models answer or have failed. It does not survive a restart: "
        "that takes an edit of --model_config_file.",
    )
    reload.add_argument("file", metavar="FILE", help="a text ModelServerConfig")
    reload.add_argument(
        "--dry_run", action="store_true", help="only say what would change"
    )
    reload.set_defaults(run=_run_reload)
    parser = subparsers.add_parser(
        "config",
        help="check, show and reset configuration",
        description="Checks a configuration, shows the running one, drops overrides.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    validate = actions.add_parser(
        "validate",
        help="check a file",
        description="Checks FILE without a server, and notes base paths and versions "
        "that are not on this machine; with --socket or --address, that server checks it "
        "too, and says what would change.",
    )
    validate.add_argument("file", metavar="FILE", help="a text ModelServerConfig")
    validate.set_defaults(run=_run_validate)
    show = actions.add_parser(
        "show",
        help="read the running configuration back",
        description="Prints the running configuration as a config file, with overrides "
        "laid over it and its state as comments. Loading it changes nothing.",
    )
    show.set_defaults(run=_run_show)
    reset = actions.add_parser(
        "reset",
        help="drop a model's override",
        description="Drops what canary, promote or rollback changed about MODEL: what "
        "the configuration says holds again.",
    )
    reset.add_argument("model", metavar="MODEL")
    reset.add_argument(
        "--dry_run", action="store_true", help="only check whether it could be done"
    )
    reset.set_defaults(run=_run_reset)
    for action in (reload, validate, show, reset):
        add_admin_arguments(action)


def _run_validate(arguments: argparse.Namespace) -> int:
    from tfs.servables.registry import default_registry
    from tfs.server.config.config_file import read_config_file
    from tfs.server.config.server_config import read_config_text
    from tfs.server.model_settings import DETECT

    text = read_config_file(arguments.file)
    platforms = (DETECT, *default_registry().names)
    config = read_config_text(text, arguments.file, platforms)
    if arguments.socket or arguments.address:
        return _send(arguments, text, True)
    if arguments.json:
        print(f'{{"valid": true, "num_models": {len(config.models)}}}')
    else:
        print(f"{arguments.file} is valid: {len(config.models)} model(s)")
        for model in config.models.values():
            emit(notes_lines(leads_nowhere(model)))
    return 0


def leads_nowhere(model: ModelSettings) -> Iterator[str]:
    """Yields what a model's config names and this machine does not have."""
    from sources.version_policy import Specific, list_versions, name_versions

    path = model.base_path
    if "://" in path:
        return
    try:
        versions = name_versions(os.listdir(path))
    except OSError as error:
        yield f"{model.name}: base path {path}: {error.strerror}"
        return
    if not versions:
        yield f"{model.name}: base path {path} holds no version"
        return
    named = [(f"label {each} is for", v) for each, v in sorted(model.labels.items())]
    if model.primary is not None:
        named.append(("the primary is", model.primary))
    if model.canary is not None:
        named.append(("the canary is", model.canary.version))
    if isinstance(model.policy, Specific):
        named += [("the policy asks for", each) for each in model.policy.versions]
    for what, version in named:
        if version not in versions:
            there = f"{path}; there: {list_versions(sorted(versions))}"
            yield f"{model.name}: {what} version {version}, which is not in {there}"


def _run_reload(arguments: argparse.Namespace) -> int:
    from tfs.server.config.config_file import read_config_file

    return _send(arguments, read_config_file(arguments.file), arguments.dry_run)


def _send(arguments: argparse.Namespace, text: str, validate_only: bool) -> int:
    """Sends a configuration and prints the outcome; 0 if nothing is wrong."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ApplyConfigRequest(
        text=text, validate_only=validate_only, text_name=arguments.file
    )

    def lines(reply: pb.ApplyConfigResponse) -> Iterator[str]:
        yield from apply_lines(reply)
        num_bad = sum(each.status.code != 0 for each in reply.models)
        if reply.status.code == _UNKNOWN and reply.applied and num_bad:
            # The table shows the reasons already. They name memory and paths, and are
            # too long to print twice.
            yield (
                f"applied: {num_bad} model(s) did not become available as configured, "
                "see above"
            )
        elif reply.status.code:
            yield f"{'applied' if reply.applied else 'refused'}: {reply.status.message}"
        else:
            yield "valid" if validate_only else "applied"

    reply = answer(arguments, request, pb.ApplyConfigResponse, lines)
    return 1 if reply.status.code else 0


def _run_show(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    def lines(reply: pb.GetConfigResponse) -> Iterator[str]:
        yield reply.effective_text.removesuffix("\n")
        yield from (f"# {line}" for line in notes_lines(reply.notes))
        for each in reply.overrides:
            if not each.active:
                why = " ".join(each.why_inactive.split())
                yield f"# inactive override of {each.config.name}: {why}"
        if reply.HasField("last_refusal"):
            problem = " ".join(reply.last_refusal.error.message.split())
            yield f"# the last configuration was refused: {problem}"

    answer(arguments, pb.GetConfigRequest(), pb.GetConfigResponse, lines)
    return 0


def _run_reset(arguments: argparse.Namespace) -> int:
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ResetOverrideRequest(
        model=arguments.model, validate_only=arguments.dry_run
    )
    answer(
        arguments,
        request,
        pb.ResetOverrideResponse,
        lambda reply: outcome_lines(reply.outcome),
    )
    return 0
