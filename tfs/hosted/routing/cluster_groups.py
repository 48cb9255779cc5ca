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
    members: dict[str, Counter[tuple[str, ...]]] = {}
    for name, addresses in routes.items():
        group = before.group_of.get(name)
        if group is not None and addresses:
            members.setdefault(group, Counter())[tuple(sorted(addresses))] += 1
    servers: dict[str, tuple[str, ...]] = {}
    by_servers: dict[tuple[str, ...], str] = {}
    for group, counts in members.items():
        # What most of its models have now is what the group has.
        addresses = max(counts, key=lambda each: (counts[each], each))
        if addresses not in by_servers:
            servers[group] = addresses
            by_servers[addresses] = group
    number, group_of = before.next_number, {}
    for name, found in routes.items():
        if not found:
            continue
        addresses = tuple(sorted(found))
        if addresses not in by_servers:
            by_servers[addresses] = f"{number}"
            servers[f"{number}"] = addresses
            number += 1
        group_of[name] = by_servers[addresses]
    return ClusterGroups(servers, group_of, number)
