"""What the commands of a fleet ask its controller for."""

from __future__ import annotations

import argparse
from typing import Any

from tfs.core.errors import InvalidArgument
from tfs.proto.tfs.v1 import controller_pb2 as pb


def request_of(arguments: argparse.Namespace) -> Any:
    """Returns the request of a command, which has an Edit.

    Raises:
        InvalidArgument: What the command line says does not go together.

    """
    match arguments.hosted_command:
        case "add-job":
            return _add_job(arguments)
        case "remove-job":
            return _filled(pb.DrainJobRequest, arguments)
        case "add-model" | "upload":
            return _filled(pb.AddModelRequest, arguments, hints=_hints(arguments))
        case "update-model":
            return _filled(pb.UpdateModelRequest, arguments)
        case "remove-model":
            return _filled(pb.RemoveModelRequest, arguments)
        case "add-version":
            return _filled(pb.AddVersionRequest, arguments)
        case "scale":
            hints = _hints(arguments)
            if not hints.ListFields():
                raise InvalidArgument("say --replicas, --memory or --cpus")
            return pb.SetHintsRequest(model=arguments.model, hints=hints)
        case "canary":
            return _canary(arguments)
        case command:
            return _promotion(arguments, command)


def _filled(kind: Any, arguments: argparse.Namespace, **more: object) -> Any:
    """Returns a message with the fields for which there is an argument of their name."""
    names = kind.DESCRIPTOR.fields_by_name.keys() & vars(arguments).keys()
    return kind(**{**{each: getattr(arguments, each) for each in names}, **more})


def _add_job(arguments: argparse.Namespace) -> pb.AddJobRequest:
    if arguments.servers is None and arguments.cpus:
        raise InvalidArgument("--cpus is for servers that the fleet starts")
    least, most = arguments.servers or (0, 0)
    made: pb.AddJobRequest = _filled(
        pb.AddJobRequest,
        arguments,
        memory_bytes=arguments.memory,
        num_replicas=least,
        max_replicas=most if most > least else 0,
    )
    return made


def _canary(arguments: argparse.Namespace) -> pb.SetPolicyRequest:
    request = pb.SetPolicyRequest(model=arguments.model)
    trial = request.canary.canary
    trial.version = arguments.version
    trial.tee_fraction, trial.split_fraction = arguments.tee, arguments.split
    if arguments.primary is not None:
        request.canary.primary = arguments.primary
    return request


def _promotion(arguments: argparse.Namespace, command: str) -> pb.SetPolicyRequest:
    """Pins a version, returns to an older one, or (--end) to the newest."""
    request = pb.SetPolicyRequest(model=arguments.model)
    has_version = arguments.version is not None
    if arguments.end is has_version and (arguments.end or command == "promote"):
        raise InvalidArgument(f"tfs hosted {command} takes a version, or --end")
    if arguments.end:
        request.latest.SetInParent()
    elif command == "promote":
        request.pinned.version = arguments.version
    else:
        request.rollback.CopyFrom(pb.Rollback(version=arguments.version))
    return request


def _hints(arguments: argparse.Namespace) -> pb.Hints:
    least, most = arguments.replicas or (None, None)
    return pb.Hints(
        min_replicas=least,
        max_replicas=most,
        memory_bytes=arguments.memory,
        cpus=arguments.cpus,
    )
