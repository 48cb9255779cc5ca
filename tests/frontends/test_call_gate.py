"""How many calls grpcio may hold, and who is next."""

from __future__ import annotations

from tfs.frontends.rpc.grpcio.call_gate import CallGate


class Waiting:
    """A connection that holds some calls back."""

    def __init__(self, gate: CallGate, num_held: int, log: list[Waiting]) -> None:
        self._gate = gate
        self._num_held = num_held
        self._log = log

    def go_on(self) -> bool:
        self._log.append(self)
        self._gate.begin()
        self._num_held -= 1
        return self._num_held > 0


def filled(num_calls: int) -> CallGate:
    gate = CallGate(lambda: 0.0)
    for _ in range(num_calls):
        gate.begin()
    return gate


def test_each_connection_may_have_some_calls_whatever_others_have() -> None:
    """Eight, while all together have up to 4096; more, while they have up to 512."""
    gate = filled(511)
    assert gate.may_begin(100)
    gate.begin()
    assert not gate.may_begin(8)
    assert gate.may_begin(7)
    for _ in range(4096 - 512):
        assert gate.may_begin(0)
        gate.begin()
    assert not gate.may_begin(0)


def test_those_that_wait_go_on_in_turn() -> None:
    """One call of each when another is over; nobody overtakes them."""
    gate = filled(512)
    log: list[Waiting] = []
    first, second = Waiting(gate, 2, log), Waiting(gate, 2, log)
    gate.wait(first)
    gate.wait(second)
    for _ in range(3):
        gate.end()
        assert gate.num_calls == 512
    assert log == [first, second, first]
    gate.forget(second)
    gate.forget(second)
    gate.end()
    assert log == [first, second, first]
    assert gate.may_begin(8)


def test_while_many_dead_calls_wait_each_connection_begins_one() -> None:
    """64 that were reset, and that grpcio has not got round to."""
    gate = filled(64)
    for index in range(64):
        assert gate.may_begin(7)
        gate.reset(lambda: None)
        assert gate.may_begin(0), index
    assert not gate.may_begin(1)
    gate.note_taken()
    assert gate.may_begin(7)
