"""What the commands of a fleet ask its controller for: a function for each, by its name."""

from __future__ import annotations

import argparse
import re

from tfs.core.errors import InvalidArgument
from tfs.proto.tfs.v1 import controller_pb2 as pb


def add_job(arguments: argparse.Namespace) -> pb.AddJobRequest:
    """Adds or changes a job."""
    if arguments.servers is None:
        job_address(arguments.job)
        if arguments.cpus:
            raise InvalidArgument("--cpus is for servers that the fleet starts")
    least, most = arguments.servers or (0, 0)
    return pb.AddJobRequest(
        job=arguments.job,
        memory_bytes=arguments.memory,
        partition=arguments.partition,
        num_replicas=least,
        max_replicas=most if most > least else 0,
        cpus=arguments.cpus,
        zone=arguments.zone,
        instance=arguments.instance,
    )


def remove_job(arguments: argparse.Namespace) -> pb.DrainJobRequest:
    """Removes a job."""
    return pb.DrainJobRequest(job=arguments.job, force=arguments.force)


def add_model(arguments: argparse.Namespace) -> pb.AddModelRequest:
    """Adds a model."""
    return pb.AddModelRequest(
        model=arguments.model,
        base_path=arguments.base_path,
        config=arguments.config,
        hints=_hints(arguments),
        partition=arguments.partition,
    )


def update_model(arguments: argparse.Namespace) -> pb.UpdateModelRequest:
    """Changes a model's config."""
    return pb.UpdateModelRequest(
        model=arguments.model,
        base_path=arguments.base_path,
        config=arguments.config,
        partition=arguments.partition,
    )


def scale(arguments: argparse.Namespace) -> pb.SetHintsRequest:
    """Changes what is known of a model's load and size."""
    request = pb.SetHintsRequest(model=arguments.model, hints=_hints(arguments))
    if not request.hints.ListFields():
        raise InvalidArgument("say --replicas, --memory or --cpus")
    return request


def remove_model(arguments: argparse.Namespace) -> pb.RemoveModelRequest:
    """Removes a model."""
    return pb.RemoveModelRequest(model=arguments.model)


def add_version(arguments: argparse.Namespace) -> pb.AddVersionRequest:
    """Tells of a version."""
    return pb.AddVersionRequest(model=arguments.model, version=arguments.version)


def canary(arguments: argparse.Namespace) -> pb.SetPolicyRequest:
    """Puts a version on trial."""
    request = pb.SetPolicyRequest(model=arguments.model)
    trial = request.canary.canary
    trial.version = arguments.version
    trial.tee_fraction, trial.split_fraction = arguments.tee, arguments.split
    if arguments.primary is not None:
        request.canary.primary = arguments.primary
    return request


def promote(arguments: argparse.Namespace) -> pb.SetPolicyRequest:
    """Pins a version, or none."""
    request = pb.SetPolicyRequest(model=arguments.model)
    if arguments.end is (arguments.version is not None):
        command = arguments.hosted_command
        raise InvalidArgument(f"tfs hosted {command} takes a version, or --end")
    if arguments.end:
        request.latest.SetInParent()
    else:
        request.pinned.version = arguments.version
    return request


def rollback(arguments: argparse.Namespace) -> pb.SetPolicyRequest:
    """Returns to an older version, or to the newest."""
    if arguments.end:  # which a promotion has as well
        return promote(arguments)
    return pb.SetPolicyRequest(
        model=arguments.model, rollback=pb.Rollback(version=arguments.version)
    )


def job_address(text: str) -> str:
    """Returns the address of a server.

    Raises:
        InvalidArgument: No server can have it.

    """
    found = re.fullmatch(r"unix:/.+|[^/]+:([0-9]+)", text)
    if not found or (found[1] and not 0 < int(found[1]) < 1 << 16):
        raise InvalidArgument(
            f"an address is HOST:PORT or unix:/path: {text}; for a job whose servers the "
            "fleet starts, say how many (--servers)"
        )
    return text


def _hints(arguments: argparse.Namespace) -> pb.Hints:
    least, most = arguments.replicas or (None, None)
    return pb.Hints(
        min_replicas=least,
        max_replicas=most,
        memory_bytes=arguments.memory,
        cpus=arguments.cpus,
    )
