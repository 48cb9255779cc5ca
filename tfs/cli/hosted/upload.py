"""``tfs hosted upload``: copies a version to where a fleet's servers find it, and adds it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sources.remote.storage import RemoteFileSystem
from sources.storage.file_system import AnyFileSystem
from sources.storage.version_contents import what_is_missing
from sources.version_policy import name_versions
from tfs.cli.hosted.controller import ask, change
from tfs.cli.hosted.requests import request_of
from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from tfs.core.system.replaced_file import TEMPORARY_PREFIX
from tfs.core.version.manifest import MANIFEST
from tfs.core.version_directory import is_committed, payload_files
from tfs.hosted.fleet import ModelConfig, read_config, room_for
from tfs.hosted.probes import PER_VERSION_BYTES, size_of
from tfs.proto.tfs.v1 import controller_pb2 as pb


def upload(arguments: argparse.Namespace) -> int:
    """Copies the version, then adds it, or the model that is new with it.

    Nothing is copied of what would be refused, or was asked for before.
    """
    source = Path(arguments.directory)
    fleet = ask(arguments, "ListModels", pb.ListFleetRequest(), pb.FleetInfo)
    known = next((each for each in fleet.models if each.model == arguments.model), None)
    before = _asked_before(arguments)
    config = read_config(arguments.config if known is None else known.config)
    _check_files(source, config.model_platform)
    if known is not None:
        base_path = config.base_path
    else:
        if {"", ".", ".."} & {*arguments.model.split("/")}:
            raise InvalidArgument(f"{arguments.model} names no folder of a model")
        base_path = f"{_store_of(fleet, arguments.partition)}/{arguments.model}"
    arguments.base_path = base_path
    version = arguments.version
    if version is None and source.name.isdecimal():
        version = int(source.name)
    if version is None and before is not None and before.HasField("version"):
        version = before.version
    try:
        if version is None:
            version = max(_versions(base_path), default=0) + 1
        to = f"{base_path}/{version}"
        is_new = known is None if before is None else not before.HasField("version")
        request = (
            request_of(arguments)
            if is_new
            else pb.AddVersionRequest(model=arguments.model, version=version)
        )
        if before is None:
            _check(arguments, request, source, config)
        if before is not None:
            print(f"was asked for before: {before.what}")
        elif version in _versions(base_path) and _is_whole(str(source), to):
            print(f"{to} is there already")
        elif arguments.dry_run:
            print(f"would copy {source} to {to}")
        else:
            _copy(str(source), to)
            print(f"copied {source} to {to}")
    except OSError as error:
        raise FailedPrecondition(f"{base_path}: {error}") from error
    if arguments.dry_run:
        print(
            f"would add {'' if is_new else f'version {version} of '}{arguments.model}"
        )
        return 0
    return change(arguments, request)


def _check_files(source: Path, platform: str) -> None:
    """Raises InvalidArgument if a directory has nothing that a server would serve."""
    try:
        names = frozenset(os.listdir(source))
    except OSError as error:
        raise InvalidArgument(f"{source}: {error.strerror}") from error
    lacks = what_is_missing(names, platform, has_other_platforms=False)
    if lacks and MANIFEST not in names:
        raise InvalidArgument(f"{source}: {lacks} (nothing was copied)")


def _check(
    arguments: argparse.Namespace, request: Any, source: Path, config: ModelConfig
) -> None:
    """Raises FailedPrecondition if the controller would refuse it once it is copied.

    It would say so too late then: servers find by themselves what was copied.
    """
    if arguments.if_generation is not None:
        request.edit.if_generation = arguments.if_generation
    if isinstance(request, pb.AddModelRequest):
        asked = pb.SimulateRequest(add_model=request)
        asked.add_model.hints.memory_bytes = arguments.memory or room_for(
            config, size_of(str(source)) + PER_VERSION_BYTES
        )
    else:
        asked = pb.SimulateRequest(add_version=request)
        asked.add_version.files_follow = True
    found = ask(arguments, "Simulate", asked, pb.Simulation)
    if found.refusal:
        raise FailedPrecondition(f"{found.refusal} (nothing was copied)")


def _asked_before(arguments: argparse.Namespace) -> pb.Op | None:
    """Returns what the request with the given id asked for; None if it is a new one."""
    if not arguments.request_id:
        return None
    request = pb.GetOpRequest(request_id=arguments.request_id)
    try:
        op: pb.Op = ask(arguments, "GetOp", request, pb.Op)
    except NotFound:
        return None
    return op


def _store_of(fleet: pb.FleetInfo, partition: str) -> str:
    place = fleet.model_stores.get(partition) or fleet.model_stores.get("")
    if not place:
        raise FailedPrecondition(
            "this fleet has no place for uploads: start tfs hosted run with "
            "--model_store, or copy the version yourself and say add-model"
        )
    return str(place).rstrip("/")


def _versions(base_path: str) -> Collection[int]:
    """Returns the versions in a folder or behind a URL, which need not be there yet."""
    try:
        return name_versions(
            AnyFileSystem(RemoteFileSystem()).list_directories(base_path)
        )
    except FileNotFoundError:
        return ()


def _is_whole(source: str, to: str) -> bool:
    """Whether the directory of a version has all the files of another.

    Raises:
        AlreadyExists: It has other files.

    """
    ours, theirs = _sizes(source), _sizes(to)
    if theirs.items() <= ours.items() and MANIFEST in ours.keys() - theirs.keys():
        return False  # whoever copied it did not get to the manifest, which is last
    # A manifest has the digests of all others.
    telling = [MANIFEST] if MANIFEST in ours else list(ours)
    if ours != theirs or any(
        _digest(f"{source}/{each}") != _digest(f"{to}/{each}") for each in telling
    ):
        raise AlreadyExists(
            f"{to} has other files; versions never change, so take another number "
            "(--version)"
        )
    return True


def _copy(source: str, to: str) -> None:
    """Copies a directory's files, the manifest last."""
    if "://" not in to:
        base_path, _, version = to.rpartition("/")
        scratch = Path(base_path, f"{TEMPORARY_PREFIX}{version}-upload")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch)
        scratch.rename(to)
        return
    store = RemoteFileSystem()
    for name in sorted(_sizes(source), key=lambda each: (each == MANIFEST, each)):
        store.put(f"{source}/{name}", f"{to}/{name}")


def _sizes(folder: str) -> Mapping[str, int]:
    """Returns the size of each file of a version."""
    if "://" in folder:
        return RemoteFileSystem().file_sizes(folder)
    names = [*payload_files(folder), *([MANIFEST] if is_committed(folder) else [])]
    return {each: os.path.getsize(f"{folder}/{each}") for each in names}


def _digest(path: str) -> str:
    with open(os.devnull, "wb") as nowhere:
        return RemoteFileSystem().copy(path, nowhere)
