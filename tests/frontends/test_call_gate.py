"""How many calls grpcio may hold, and who is next."""

from __future__ import annotations

from tfs.frontends.rpc.grpcio.call_gate import CallGate


class Waiting:
    """A connection that holds some calls back."""

    def __init__(
        self, gate: CallGate, num_own: int, num_held: int, log: list[Waiting]
    ) -> None:
        self._gate = gate
        self._num_own = num_own
        self._num_held = num_held
        self._log = log
        gate.wait(self, num_own)

    def go_on(self) -> None:
        self._log.append(self)
        self._gate.begin()
        self._num_own += 1
        self._num_held -= 1
        if self._num_held:
            self._gate.wait(self, self._num_own)


class Rig:
    """A gate, and the time that it knows."""

    def __init__(self, num_calls: int = 0, num_fresh: int = 0) -> None:
        self.now_s = 0.0
        self.gate = CallGate(lambda: self.now_s)
        for _ in range(num_calls):
            self.gate.begin()
        for _ in range(num_calls - num_fresh):
            self.gate.end_fresh()

    def end(self, num_calls: int = 1) -> None:
        for _ in range(num_calls):
            self.gate.end()
        self.gate.go_on()


def test_the_more_calls_there_are_the_fewer_each_connection_may_have() -> None:
    """The product of both is limited; one call may begin in any case."""
    for num_calls, num_own in ((512, 64), (1000, 32), (4096, 8), (20_000, 1)):
        gate = Rig(num_calls, 0).gate
        assert gate.may_begin(num_own - 1 if num_own * num_calls % 32_768 == 0 else 1)
        assert not gate.may_begin(num_own + 1)
        assert gate.may_begin(0)


def test_who_has_the_fewest_calls_goes_on_first() -> None:
    """Thousands of calls of others keep nobody out; equals take turns."""
    rig = Rig(5000)
    log: list[Waiting] = []
    many = Waiting(rig.gate, 20, 2, log)
    some = Waiting(rig.gate, 7, 2, log)
    others = Waiting(rig.gate, 7, 2, log)
    rig.end()
    assert not log
    rig.end(5000 - 4682)
    assert log == [some]
    rig.end(1)
    assert log == [some, others]
    rig.end(600)
    assert log == [some, others, some, others]
    rig.gate.forget(many)
    rig.gate.forget(many)
    rig.end(4000)
    assert many not in log


def test_who_waits_with_as_many_calls_keeps_its_place() -> None:
    """Asking again changes nothing; with fewer calls it goes before."""
    rig = Rig(5000)
    log: list[Waiting] = []
    first, second = Waiting(rig.gate, 9, 1, log), Waiting(rig.gate, 9, 1, log)
    third = Waiting(rig.gate, 9, 1, log)
    rig.gate.wait(first, 9)
    rig.gate.wait(third, 8)
    rig.end(4900)
    assert log == [third, first, second]


def test_no_client_fills_the_queue_of_calls_to_be_handed_over() -> None:
    """The more are in it, the fewer each connection may add; all together, 2048."""
    gate = Rig(100, 100).gate
    gate.num_queuing = 10
    assert gate.may_queue(5)
    assert not gate.may_queue(6)
    assert Rig(2047, 2047).gate.may_begin(0)
    rig = Rig(2048, 2048)
    assert not rig.gate.may_begin(0)
    log: list[Waiting] = []
    Waiting(rig.gate, 0, 1, log)
    rig.gate.end_fresh()
    rig.gate.go_on()
    assert len(log) == 1


def test_calls_that_were_reset_are_gone_when_none_is_handed_over_for_a_while() -> None:
    """Or when one is that began a quarter of a second later, not before."""
    rig = Rig()
    gone: list[int] = []
    rig.gate.reset(lambda: gone.append(1))
    rig.now_s = 0.125
    rig.gate.note_taken(0.0)
    rig.now_s = 0.25
    rig.gate.look()
    assert not gone
    rig.now_s = 0.375
    rig.gate.look()
    assert gone == [1]
    rig.gate.reset(lambda: gone.append(2))
    rig.now_s = 1.0
    rig.gate.note_taken(0.5)
    assert gone == [1]
    rig.gate.note_taken(0.625)
    assert gone == [1, 2]


def test_calls_of_who_has_left_count_until_they_are_handed_over_or_dropped() -> None:
    """However often a client connects again, grpcio holds no more of its calls."""
    rig = Rig(3, 3)
    for _ in range(3):
        rig.gate.leave()
    rig.gate.note_orphan_taken()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (2, 2)
    rig.now_s = 0.25
    rig.gate.look()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (0, 0)
    rig.gate.note_orphan_taken()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (0, 0)
