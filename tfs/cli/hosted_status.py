"""``tfs hosted status``: what a fleet wants, where it is, and what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING, Final

from tfs.cli.argument_range import count
from tfs.cli.hosted_store import add_fleet_command, open_store
from tfs.cli.printing import ago, mebibytes, table
from tfs.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfs.hosted.fleet import Fleet, HostedModel
    from tfs.hosted.fleet_store import FleetStore, ModelSighting, Sightings

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_STALE_S: Final = 30.0  # a synchronizer notes what it sees every ten seconds


def add_status(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_fleet_command(
        commands, "status", "show what is wanted, and where", _status
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--history", type=count, metavar="N", help="show the last N changes instead"
    )


def _status(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    if not os.path.exists(store.path):  # to read it would make an empty one
        raise _no_fleet(store)
    if arguments.history:
        rows = [
            (r.number, ago(r.at_s), r.why) for r in store.history(arguments.history)
        ]
        print(table(("REVISION", "AGO", "CHANGE"), rows))
        return 0
    revision, seen = store.read(), store.sightings()
    if not revision.number:
        raise _no_fleet(store)
    fleet = revision.fleet
    if arguments.json:
        print(json.dumps(_as_json(fleet, seen), indent=2))
        return 0
    columns = ("SERVER", "STATE", "PARTITION", "MEMORY", "FREE", "MODELS")
    print(table(columns, _job_rows(fleet)))
    print()
    columns = ("MODEL", "REPLICAS", "ANSWERING", "EACH", "SERVERS", "PROBLEM")
    print(table(columns, _model_rows(fleet, seen)))
    _note_if_nobody_looks(fleet, seen)
    is_served = all(
        each.num_answering for name, each in seen.models.items() if name in fleet.models
    )
    return 0 if all(fleet.placement.values()) and is_served else 1


def _no_fleet(store: FleetStore) -> NotFound:
    return NotFound(f"there is no fleet in {store.path}; tfs hosted add-job makes it")


def _as_json(fleet: Fleet, seen: Sightings) -> dict[str, object]:
    models = {
        name: {"answering": each.num_answering, "problem": each.problem}
        for name, each in seen.models.items()
    }
    wanted: dict[str, object] = json.loads(fleet.to_json())
    return wanted | {"sightings": {"at_s": seen.at_s, "models": models}}


def _job_rows(fleet: Fleet) -> Sequence[tuple[object, ...]]:
    from tfs.hosted.placement import free_bytes

    free = free_bytes(fleet.models, fleet.jobs, fleet.placement)
    return [
        (
            job.address,
            "down" if job.is_down else "leaving" if job.is_leaving else "up",
            job.partition or "-",
            mebibytes(job.memory_bytes),
            mebibytes(free[job.address]),
            sum(job.address in at for at in fleet.placement.values()),
        )
        for job in fleet.jobs.values()
    ]


def _model_rows(fleet: Fleet, seen: Sightings) -> Sequence[tuple[object, ...]]:
    rows = []
    for model in fleet.models.values():
        sighting = seen.models.get(model.name)
        places = fleet.placement[model.name]
        rows.append(
            (
                model.name,
                f"{len(places)} of {model.num_replicas}",
                sighting.num_answering if sighting else "-",
                mebibytes(model.memory_bytes)
                + ("" if model.is_estimate else " (fixed)"),
                ", ".join(places) or "no room",
                "; ".join(_problems(model, len(places), sighting)) or "-",
            )
        )
    return rows


def _problems(
    model: HostedModel, num_places: int, sighting: ModelSighting | None
) -> Sequence[str]:
    """Returns what is wrong with a model where it is, and that it is in too few places."""
    problems = []
    if num_places < model.num_replicas:
        problems.append(
            f"no room for {model.num_replicas - num_places} of its replicas"
        )
    if sighting is not None and sighting.problem:
        problems.append(sighting.problem)
    return problems


def _note_if_nobody_looks(fleet: Fleet, seen: Sightings) -> None:
    quiet_s = time.time() - seen.at_s
    if fleet.models and not seen.at_s:
        print("note: nobody has looked at the servers yet: start tfs hosted run")
    elif fleet.models and quiet_s > _STALE_S:
        print(
            f"note: nobody has looked at the servers for {quiet_s:.0f} s: does tfs "
            "hosted run still run?"
        )
