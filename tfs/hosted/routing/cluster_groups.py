"""Groups models that have the same servers, so that a router needs to know of few groups.

A group is called by a number that stays with it while its servers change: most changes, a
server that ends or comes back, then change a group's servers and no model's group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.hosted.routing.fleet_router import Routes

Servers = Mapping[str, tuple[str, ...]]
"""The addresses of each group; never none."""


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """The groups at one moment. Immutable."""

    servers: Servers = field(default_factory=dict)
    # Of each model that some server answers for.
    group_of: Mapping[str, str] = field(default_factory=dict)
    next_number: int = 0  # the name of the next new group


def regrouped(before: ClusterGroups, routes: Routes) -> ClusterGroups:
    """Returns the groups for new routes; pure."""
    found = {name: tuple(sorted(each)) for name, each in routes.items() if each}
    counts = Counter(
        (before.group_of[name], addresses)
        for name, addresses in found.items()
        if name in before.group_of
    )
    by_servers: dict[tuple[str, ...], str] = {}
    taken: set[str] = set()
    # What most of its models have now is what a group has.
    for (group, addresses), _ in counts.most_common():
        if group not in taken and addresses not in by_servers:
            taken.add(group)
            by_servers[addresses] = group
    number = before.next_number
    for addresses in found.values():
        if addresses not in by_servers:
            by_servers[addresses] = f"{number}"
            number += 1
    servers = {group: addresses for addresses, group in by_servers.items()}
    group_of = {name: by_servers[addresses] for name, addresses in found.items()}
    return ClusterGroups(servers, group_of, number)
