"""The serving map under random publications, withdrawals and pins."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from managers.serving_map import Handle, ServingMap, retire
from tfs.core.errors import NotFound
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest

names = st.sampled_from(("a", "b"))
versions = st.integers(0, 3)


class ServingMapMachine(RuleBasedStateMachine):
    """A plain dict beside the map: both must answer alike."""

    def __init__(self) -> None:
        super().__init__()
        self.map = ServingMap()
        self.model: dict[str, dict[int, Handle]] = {}
        self.pins: list[Handle] = []
        self.retired: list[Handle] = []
        self.destroyed: list[Handle] = []
        self.seen = self.map._streams
        self.copy = dict(self.seen)

    @rule(name=names, version=versions)
    def publish(self, name: str, version: int) -> None:
        handle: Handle = ServableHandle(ServableId(name, version), [name, version])
        stream = self.model.setdefault(name, {})
        assert self.map.publish(handle) is stream.get(version)
        if version in stream:
            self.take_out(stream[version])
        stream[version] = handle

    @rule(name=names, version=versions)
    def unload(self, name: str, version: int) -> None:
        handle = self.model.get(name, {}).pop(version, None)
        if handle is not None:
            self.take_out(handle)

    def take_out(self, handle: Handle) -> None:
        if retire(self.map, handle, self.destroy_unpinned):
            handle.drop()
            self.destroyed.append(handle)
        else:
            self.retired.append(handle)

    def destroy_unpinned(self) -> None:
        for handle in [h for h in self.retired if not h.num_pins]:
            self.retired.remove(handle)
            handle.drop()
            self.destroyed.append(handle)

    @rule(name=names, version=st.one_of(st.none(), versions), earliest=st.booleans())
    def pin(self, name: str, version: int | None, earliest: bool) -> None:
        stream = self.model.get(name, {})
        if version is not None:
            expected = stream.get(version)
            request = ServableRequest.specific(name, version)
        elif earliest:
            expected = stream[min(stream)] if stream else None
            request = ServableRequest.earliest(name)
        else:
            expected = stream[max(stream)] if stream else None
            request = ServableRequest.latest(name)
        try:
            handle = self.map.acquire_request(request)
        except NotFound:
            assert expected is None
            return
        assert handle is expected
        self.pins.append(handle)

    @precondition(lambda self: self.pins)
    @rule(index=st.integers(0, 99))
    def unpin(self, index: int) -> None:
        self.pins.pop(index % len(self.pins)).release()

    @invariant()
    def pinned_servables_are_whole(self) -> None:
        for handle in self.pins:
            assert handle.servable == [handle.id.name, handle.id.version]

    @invariant()
    def pins_are_counted(self) -> None:
        for handle in self.pins:
            assert handle.num_pins == self.pins.count(handle)
        for handle in self.destroyed:
            assert handle.num_pins == 0

    @invariant()
    def listing_is_the_models(self) -> None:
        expected = sorted(h.id for s in self.model.values() for h in s.values())
        assert self.map.list_ids() == expected

    @invariant()
    def published_tables_never_change(self) -> None:
        assert self.seen == self.copy
        self.seen = self.map._streams
        self.copy = dict(self.seen)


TestServingMap = ServingMapMachine.TestCase
TestServingMap.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
