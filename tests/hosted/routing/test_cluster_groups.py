"""Which models share a group, and that groups stay while their servers change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfs.hosted.routing.cluster_groups import ClusterGroups, regrouped


def test_models_with_the_same_servers_share_a_group() -> None:
    """A router knows of few groups, however many models there are."""
    groups = regrouped(
        ClusterGroups(), {"m": ("a", "b"), "n": ("b", "a"), "o": ("c",), "none": ()}
    )
    assert groups.servers == {"0": ("a", "b"), "1": ("c",)}
    assert groups.group_of == {"m": "0", "n": "0", "o": "1"}


def test_a_server_that_ends_changes_its_group_and_no_model_s() -> None:
    """Then endpoints change, which routers learn at once."""
    before = regrouped(ClusterGroups(), {"m": ("a", "b"), "n": ("a", "b")})
    after = regrouped(before, {"m": ("b",), "n": ("b",)})
    assert after.group_of == before.group_of
    assert after.servers == {"0": ("b",)}


def test_a_model_that_differs_gets_a_group_of_its_own() -> None:
    """The group stays with what most of its models have; a name is used once."""
    before = regrouped(ClusterGroups(), dict.fromkeys("xyz", ("a", "b")))
    after = regrouped(before, {"x": ("b",), "y": ("a", "b"), "z": ("a", "b")})
    assert after.group_of == {"x": "1", "y": "0", "z": "0"}
    again = regrouped(after, {"new": ("a", "b")})
    assert again.group_of == {"new": "2"}


routes = st.dictionaries(
    st.sampled_from("mnopq"),
    st.sets(st.sampled_from("abc")).map(lambda each: tuple(sorted(each))),
)


@given(routes, routes)
def test_every_model_finds_its_servers(
    one: dict[str, tuple[str, ...]], other: dict[str, tuple[str, ...]]
) -> None:
    """Whatever there was before, each is in the group that has exactly its servers."""
    groups = regrouped(regrouped(ClusterGroups(), one), other)
    for name, addresses in other.items():
        group = groups.group_of.get(name)
        assert (groups.servers[group] if group else ()) == addresses
    assert len(set(groups.servers.values())) == len(groups.servers)
