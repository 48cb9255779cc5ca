"""``tfs config``: checks a configuration, shows the running one, drops overrides."""

from __future__ import annotations

import argparse

from tfs.cli.admin_client import add_connection_arguments, ask
from tfs.cli.change_report import outcome_lines
from tfs.cli.printing import as_json, emit, notes_lines


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Adds the command and its subcommands."""
    parser = subparsers.add_parser(
        "config",
        help="check, show and reset configuration",
        description="Checks a configuration, shows the running one, drops overrides.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    validate = actions.add_parser(
        "validate",
        help="check a file",
        description="Checks FILE without a server; with --socket or --address, that "
        "server checks it too, and says what would change.",
    )
    validate.add_argument("file", metavar="FILE", help="a text ModelServerConfig")
    validate.set_defaults(run=run_validate)
    show = actions.add_parser(
        "show",
        help="read the running configuration back",
        description="Prints the running configuration as a config file, with overrides "
        "laid over it and its state as comments. Loading it changes nothing.",
    )
    show.set_defaults(run=run_show)
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
    reset.set_defaults(run=run_reset)
    for action in (validate, show, reset):
        add_connection_arguments(action)


def run_validate(arguments: argparse.Namespace) -> int:
    """Checks a file; 0 if it is valid."""
    from tfs.cli.reload import send
    from tfs.servables.built_in import default_registry
    from tfs.server.config.config_file import read_config_file
    from tfs.server.config.running_config import check_platforms
    from tfs.server.config.server_config import read_config_text
    from tfs.server.model_settings import DETECT

    text = read_config_file(arguments.file)
    config = read_config_text(text, arguments.file)
    check_platforms(config, (DETECT, *default_registry().names))
    if arguments.socket or arguments.address:
        return send(arguments, text, True)
    if arguments.json:
        print(f'{{"valid": true, "num_models": {len(config.models)}}}')
    else:
        print(f"{arguments.file} is valid: {len(config.models)} model(s)")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Prints the running configuration; 0 if the server answered."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    reply = ask(arguments, "GetConfig", pb.GetConfigRequest(), pb.GetConfigResponse)
    if arguments.json:
        print(as_json(reply))
        return 0
    print(reply.effective_text, end="")
    inactive = [each for each in reply.overrides if not each.active]
    emit(f"# {line}" for line in notes_lines(reply.notes))
    emit(
        f"# inactive override of {each.config.name}: {' '.join(each.why_inactive.split())}"
        for each in inactive
    )
    if reply.HasField("last_refusal"):
        problem = " ".join(reply.last_refusal.error.message.split())
        print(f"# the last configuration was refused: {problem}")
    return 0


def run_reset(arguments: argparse.Namespace) -> int:
    """Drops an override; 0 if the server accepted that."""
    from tfs.proto.tfs.v1 import admin_service_pb2 as pb

    request = pb.ResetOverrideRequest(
        model=arguments.model, validate_only=arguments.dry_run
    )
    reply = ask(arguments, "ResetOverride", request, pb.ResetOverrideResponse)
    if arguments.json:
        print(as_json(reply))
    else:
        emit(outcome_lines(reply.outcome))
    return 0
