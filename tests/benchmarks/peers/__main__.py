"""The command line of `make bench-peers`: everything, or less for a first look."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from collections.abc import Sequence
from types import FrameType

from tests.benchmarks.harness import main
from tests.benchmarks.peers.area import PEERS, Effort, build_area
from tests.benchmarks.peers.workload import WORKLOADS

BATCHING = {"off": (False,), "on": (True,), "both": (False, True)}
QUICK = Effort(in_flight=(1, 32), round_s=0.5, num_rounds=5, idle_s=5.0)


def parse(argv: Sequence[str] | None = None) -> tuple[Effort, list[str]]:
    """Returns what to measure, and the arguments that are the harness's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--batching", choices=BATCHING, default="both")
    parser.add_argument("--in-flight", default="")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--no-footprint", action="store_true")
    parser.add_argument("--http", action="store_true")
    chosen, rest = parser.parse_known_args(argv)
    effort = QUICK if chosen.quick else Effort()
    effort = dataclasses.replace(
        effort,
        workloads=tuple(filter(None, chosen.models.split(","))),
        is_http=chosen.http,
        peers=tuple(chosen.peers.split(",")),
        batching=BATCHING[chosen.batching],
        in_flight=tuple(map(int, filter(None, chosen.in_flight.split(","))))
        or effort.in_flight,
        num_rounds=chosen.rounds or effort.num_rounds,
        idle_s=0.0 if chosen.no_footprint else effort.idle_s,
    )
    return effort, rest


def end(signum: int, frame: FrameType | None) -> None:
    """Leaves the benchmark as an error would: servers end, also those that are paused."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    effort, rest = parse()
    raise SystemExit(main(build_area(effort), rest))
