"""The order in which waiting actions begin."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from managers.transition_policy import Action, ActionKind, ActionQueue
from tfs.core.servable_id import ServableId

LOAD, UNLOAD = ActionKind.LOAD, ActionKind.UNLOAD


def action(name: str, kind: ActionKind = LOAD, version: int = 1) -> Action:
    return Action(kind, ServableId(name, version))


def by_version(action: Action) -> int:
    return action.id.version


def put(queue: ActionQueue, *plan: Action) -> None:
    queue.put(plan[0].id.name, plan)


def names(queue: ActionQueue, *, may_load: bool = True) -> list[str]:
    """Takes everything out that may be."""
    taken = []
    while found := queue.take(may_load=may_load):
        taken.append(found.id.name)
    return taken


def test_a_plan_gives_way_after_each_of_its_actions() -> None:
    """A servable of many versions keeps no other waiting, and an empty plan is none."""
    queue = ActionQueue(lambda _: 0)
    put(queue, action("a", UNLOAD, 1), action("a", LOAD, 2), action("a", LOAD, 3))
    put(queue, action("b"))
    assert (len(queue), queue.num_loads) == (2, 3)
    assert names(queue, may_load=False) == ["a"]
    assert names(queue) == ["b", "a", "a"]
    put(queue, action("a"), action("a", version=2))
    queue.put("a", ())
    assert queue.num_loads == len(queue) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "drop", "take", "take an unload"]),
            st.sampled_from("abcd"),
            st.sampled_from([LOAD, UNLOAD]),
            st.integers(0, 3),
        )
    )
)
def test_it_is_a_sorted_list(
    steps: list[tuple[str, str, ActionKind, int]],
) -> None:
    """Whatever happens, it does what sorting all that waits each time would do.

    Equals keep their order; unloads need not wait for loads; another action of a servable
    takes the place of the first, and what was dropped never begins.
    """
    queue, model = ActionQueue(by_version), dict[str, Action]()

    def first(model: Mapping[str, Action], kinds: set[ActionKind]) -> Action | None:
        waiting = [each for each in model.values() if each.kind in kinds]
        return min(waiting, key=by_version, default=None)

    for step, name, kind, version in steps:
        if step == "put":
            put(queue, action(name, kind, version))
            model[name] = action(name, kind, version)
        elif step == "drop":
            queue.drop(name)
            model.pop(name, None)
        else:
            may_load = step == "take"
            wanted = first(model, {LOAD, UNLOAD} if may_load else {UNLOAD})
            assert queue.take(may_load=may_load) == wanted
            if wanted is not None:
                del model[wanted.id.name]
        assert len(queue) == len(model)
        assert queue.num_loads == sum(a.kind is LOAD for a in model.values())
