"""Runs lifecycle scenarios: commands in a text file, and below each what happened.

A command starts in the first column; its golden output is indented. After each
command everything that can move does, and what was published is printed. Pools are
inline or threads; with threads events of different versions may come in another
order, so the two are compared version by version.

    set limit 100            memory limit in bytes; before the first other command
    set retries 2 8          retries and the first pause in seconds; likewise
    policy NAME availability | resource
    loader NAME VERSION [ram=N] [peak=N] [fails=CODE:text[xN]] [value=V]
                             the loader that the next `aspire` gives this version
    aspire NAME [VERSION...] [because WORDS]
    broken NAME VERSION CODE text      aspires an erroneous version beside the others
    request NAME [VERSION]   who answers
    pin LABEL NAME [VERSION] / unpin LABEL
    advance SECONDS
    fault NAME VERSION text | mend NAME VERSION        what an interpreter reports
    show NAME                states, as status shows them
    resident                 what is loaded

Rewrite the golden output with `python -m tests.scenarios.runner --rewrite`, and
understand the difference.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.loading.load_admission import ResourceTracker
from managers.transition_policy import availability_preserving, resource_preserving
from managers.versions.version import RetryOptions
from tests.managers.environment import Environment, Pools
from tfs.core.errors import BY_CODE, Code, FailedPrecondition, ServingError
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ServableState
from tfs.testing.fake_loader import FakeLoader, FakeServable

FOLDER = Path(__file__).parent
INLINE, THREADS = Pools(0, 0), Pools(4, 4)
INDENT = "    "


@dataclass
class Block:
    """A command with its output, and the comments and blanks before it."""

    command: str
    output: list[str] = field(default_factory=list)
    preamble: list[str] = field(default_factory=list)


def parse(text: str) -> tuple[list[Block], list[str]]:
    """Returns the blocks of a scenario, and what follows the last one."""
    blocks: list[Block] = []
    preamble: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT) and blocks and not preamble:
            blocks[-1].output.append(line[len(INDENT) :])
        elif not line.strip() or line.startswith("#"):
            preamble.append(line)
        else:
            blocks.append(Block(line, preamble=preamble))
            preamble = []
    return blocks, preamble


def render(blocks: list[Block], rest: list[str]) -> str:
    """Returns the text of a scenario."""
    lines: list[str] = []
    for block in blocks:
        lines += [*block.preamble, block.command]
        lines += [INDENT + line for line in block.output]
    return "\n".join([*lines, *rest]) + "\n"


def by_version(output: list[str]) -> list[str]:
    """Returns the output with the events of each version together."""
    return sorted(output, key=lambda line: line.partition(" ")[0])


class Scenario:
    """Executes commands on a manager with fake loaders."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._limit_bytes: int | None = None
        self._retry = RetryOptions(max_num_retries=0)
        self._env: Environment | None = None
        self._loaders: dict[str, dict[int, FakeLoader]] = {}
        self._pins: dict[str, ServableHandle[object]] = {}
        self._wanted: dict[str, list[int | tuple[int, ServingError]]] = {}
        self._num_seen = 0

    @property
    def env(self) -> Environment:
        if self._env is None:
            tracker = (
                None
                if self._limit_bytes is None
                else ResourceTracker.ram(self._limit_bytes)
            )
            self._env = Environment(
                self._pools,
                options=AspiredVersionsManagerOptions(
                    retry=self._retry, release_memory=None
                ),
                tracker=tracker,
            )
        return self._env

    def run(self, command: str) -> list[str]:
        """Returns what the command answered, and what was published."""
        verb, *arguments = shlex.split(command)
        do: Callable[..., Iterator[str] | None] = getattr(self, f"_do_{verb}")
        answered = list(do(*arguments) or ())
        if verb == "set":
            return answered
        self.env.settle()
        log = self.env.monitor.bounded_log()
        published = [event_text(each.event) for each in log[self._num_seen :]]
        self._num_seen = len(log)
        return published + answered

    def close(self) -> None:
        """Lets pins go, unloads everything, and checks that nothing leaked."""
        for handle in self._pins.values():
            handle.release()
        assert self.env.close()
        assert self.env.log.resident == []
        assert self.env.manager.is_idle

    def _do_set(self, what: str, first: str, second: str = "0") -> None:
        assert self._env is None, "set comes first"
        if what == "limit":
            self._limit_bytes = int(first)
        else:
            assert what == "retries"
            self._retry = RetryOptions(int(first), float(second))

    def _do_policy(self, name: str, policy: str) -> None:
        policies = {
            "availability": availability_preserving,
            "resource": resource_preserving,
        }
        self.env.manager.set_transition_policy(name, policies[policy])

    def _do_loader(self, name: str, version: str, *settings: str) -> None:
        given = dict(setting.split("=", 1) for setting in settings)
        errors: list[ServingError] = []
        if "fails" in given:
            text, _, num = given["fails"].partition("*")
            errors = [_error(text)] * int(num or 1)
        self._loaders.setdefault(name, {})[int(version)] = self.env.loader(
            name,
            int(version),
            ram_bytes=int(given.get("ram", 0)),
            peak_bytes=int(given.get("peak", 0)),
            value=given.get("value"),
            errors=errors,
        )

    def _do_aspire(self, name: str, *words: str) -> None:
        reason = ""
        if "because" in words:
            cut = words.index("because")
            words, reason = words[:cut], " ".join(words[cut + 1 :])
        self._wanted[name] = [int(word) for word in words]
        self._aspire(name, reason)

    def _do_broken(self, name: str, version: str, code: str, *text: str) -> None:
        error = _error(f"{code}:{' '.join(text)}")
        self._wanted.setdefault(name, []).append((int(version), error))
        self._aspire(name, "")

    def _aspire(self, name: str, reason: str) -> None:
        prepared = self._loaders.pop(name, {})
        items = [
            prepared.get(each, each) if isinstance(each, int) else each
            for each in self._wanted[name]
        ]
        self.env.aspire(name, *items, reason=reason)

    def _do_request(self, name: str, version: str = "") -> Iterator[str]:
        try:
            with self._acquire(name, version) as servable:
                assert isinstance(servable, FakeServable)
                assert servable.is_alive
                yield f"-> {servable.id.slashed} value={servable.value}"
        except ServingError as error:
            yield f"-> {error}"

    def _do_pin(self, label: str, name: str, version: str = "") -> None:
        self._pins[label] = self._acquire(name, version)

    def _do_unpin(self, label: str) -> None:
        handle = self._pins.pop(label)
        servable = handle.servable
        assert isinstance(servable, FakeServable)
        assert servable.is_alive
        handle.release()

    def _acquire(self, name: str, version: str) -> ServableHandle[object]:
        number = int(version) if version else None
        return self.env.manager.acquire(ServableRequest(name, number))

    def _do_advance(self, seconds: str) -> None:
        self.env.clock.advance(float(seconds))

    def _do_fault(self, name: str, version: str, *text: str) -> None:
        self.env.manager.report_servable_error(
            ServableId(name, int(version)), FailedPrecondition(" ".join(text))
        )

    def _do_mend(self, name: str, version: str) -> None:
        self.env.manager.report_servable_error(ServableId(name, int(version)), None)

    def _do_show(self, name: str) -> Iterator[str]:
        for state in self.env.monitor.version_states(name):
            yield f"= {event_text(state)}"

    def _do_resident(self) -> Iterator[str]:
        resident = [i.slashed for i in self.env.log.resident]
        yield "= " + (" ".join(resident) or "nothing")


def event_text(state: ServableState) -> str:
    """Returns a state as scenarios print it."""
    parts = [state.id.slashed, state.manager_state.name]
    if state.error is not None:
        parts.append(f"[{state.error}]")
    if state.note:
        parts.append(f"({state.note})")
    if state.reason:
        parts.append(f"because {state.reason}")
    return " ".join(parts)


def _error(text: str) -> ServingError:
    code, _, message = text.partition(":")
    return BY_CODE[Code[code]](message)


def scenario_files() -> list[Path]:
    """Returns every scenario."""
    return sorted(FOLDER.glob("*.txt"))


def run_file(path: Path, pools: Pools) -> tuple[list[Block], list[Block], list[str]]:
    """Returns the blocks as written and as they came out, and the file's end."""
    written, rest = parse(path.read_text())
    scenario = Scenario(pools)
    happened = [
        Block(block.command, scenario.run(block.command), block.preamble)
        for block in written
    ]
    scenario.close()
    return written, happened, rest


def rewrite() -> None:
    """Replaces the golden output of every scenario by what happens inline."""
    for path in scenario_files():
        _, happened, rest = run_file(path, INLINE)
        path.write_text(render(happened, rest))


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        raise SystemExit(__doc__)
    rewrite()
    # Imported here, because operating scenarios are written with the above.
    from tests.scenarios.operation import rewrite_operations

    rewrite_operations()
