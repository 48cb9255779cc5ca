"""tfs.servables.measuring.code_turns."""

from __future__ import annotations

import threading

from tests.threads import run_together
from tfs.servables.measuring.code_turns import CodeTurns


def test_one_version_of_each_code_has_its_turn_and_no_more_than_a_few() -> None:
    """However many threads load versions, and of however many codes."""
    turns = CodeTurns(2)
    lock = threading.Lock()
    running: list[str] = []
    most: list[int] = []
    befores: list[tuple[str, int]] = []

    def load(code: str) -> None:
        with turns.turn(code) as before:
            with lock:
                assert code not in running
                running.append(code)
                most.append(len(running))
                befores.append((code, before))
            with lock:
                running.remove(code)

    codes = "abcd" * 4
    run_together(*(lambda code=code: load(code) for code in codes))
    assert max(most) <= 2
    assert sorted(befores) == [(code, num) for code in "abcd" for num in range(4)]
    assert turns.num_taken("a") == 4
    turns.forget("a")
    assert turns.num_taken("a") == 0


def test_a_turn_that_fails_ends() -> None:
    """The next version of that code is not kept waiting for ever."""
    turns = CodeTurns(1)
    for _ in range(2):
        try:
            with turns.turn("a"):
                raise OSError("gone")
        except OSError:
            pass
    assert turns.num_taken("a") == 2
