"""Runs operating scenarios: a server core that an operator works on, step by step.

The same files as lifecycle scenarios (``tests.scenarios.runner``), below
``operations/``, with commands of their own. There is one model, ``digits``; version
n of it multiplies its input by n.

    version N                a version's files appear
    gone N / damaged N       its files vanish, or can no longer be loaded
    look                     the base path is looked at
    config FIELDS            the config file is edited: what it says beside the name
    canary N FIELDS          tfs canary; `canary off` ends it
    promote [N] [force]      tfs promote
    rollback [N] / rollback end             tfs rollback
    reset                    tfs config reset
    restart                  the server is closed and started again
    factor N F / fails N     version N answers F times its input / fails from now on
    request [TIMES] [key=K] [version=N] [label=L]      who answers
    report                   primary, labels, override and trial
    advance SECONDS
"""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.scenarios.runner import Block, event_text, parse, render
from tests.server.admin.admin_operator import Operator
from tests.server.environment import Environment, config, model
from tfs.core.errors import Internal, ServingError
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import parse_config_text

FOLDER = Path(__file__).parent / "operations"
NAME = "digits"


class Operation:
    """Executes commands on a server core. Owns a state directory."""

    def __init__(self, *, has_threads: bool) -> None:
        self._has_threads = has_threads
        self._state = tempfile.TemporaryDirectory()
        self._fields = ""
        self._factors: dict[int, float] = {}
        self._env = Environment(self._state.name, has_threads=has_threads)
        self._operator = Operator(self._env)
        self._is_started = False
        self._num_seen = 0

    def run(self, command: str) -> list[str]:
        """Returns what was published, and what the command answered."""
        verb, *arguments = shlex.split(command)
        do: Callable[..., Iterator[str] | None] = getattr(self, f"_do_{verb}")
        try:
            answered = list(do(*arguments) or ())
        except ServingError as error:
            answered = [f"-> {error}"]
        self._env.settle()
        log = self._env.monitor.bounded_log()
        published = [event_text(each.event) for each in log[self._num_seen :]]
        self._num_seen = len(log)
        return published + answered

    def close(self) -> None:
        """Closes the server and checks that nothing stays loaded."""
        assert self._env.core.close(self._env.clock.now() + 1.0)
        assert self._env.log.resident == []
        self._state.cleanup()

    # -- files and configs ---------------------------------------------------------

    def _do_version(self, number: str) -> None:
        self._env.add_version(NAME, int(number))
        self._do_look()

    def _do_gone(self, number: str) -> None:
        self._env.files.remove(f"/models/{NAME}/{number}")
        self._do_look()

    def _do_damaged(self, number: str) -> None:
        self._env.broken.add(f"/models/{NAME}/{number}")

    def _do_look(self) -> None:
        if self._is_started:
            self._env.look()

    def _do_config(self, *fields: str) -> Iterator[str]:
        self._fields = " ".join(fields)
        text = config(model(NAME, "", self._fields))
        if not self._is_started:
            self._is_started = True
            self._env.start(text)
            return
        outcomes: list[str] = []
        self._env.core.config.apply(
            lambda: parse_config_text(text, "models.config"),
            Origin.CONFIG_FILE,
            "edit of models.config",
            lambda outcome: outcomes.append(str(outcome.error or "in force")),
        )
        self._env.settle()
        yield from (f"-> {each}" for each in outcomes)

    def _do_restart(self) -> None:
        files, broken = self._env.files, self._env.broken
        assert self._env.core.close(self._env.clock.now() + 1.0)
        self._env = Environment(
            self._state.name, has_threads=self._has_threads, files=files
        )
        self._env.broken = broken
        self._operator = Operator(self._env)
        self._num_seen = 0
        self._env.start(config(model(NAME, "", self._fields)))

    # -- an operator's commands ----------------------------------------------------

    def _do_canary(self, version: str, *fields: str) -> Iterator[str]:
        request = pb.SetCanaryRequest(model=NAME)
        if version != "off":
            text = f"version: {version} {' '.join(fields)}"
            traffic = f"traffic {{ canary {{ {text} }} }}"
            message = parse_config_text(config(model(NAME, "", traffic)), "canary")
            (parsed,) = message.model_config_list.config
            canary: model_config_pb2.Canary = parsed.traffic.canary
            request.canary.CopyFrom(canary)
        yield from _notes(self._operator.ask(request).outcome)

    def _do_promote(self, *words: str) -> Iterator[str]:
        request = pb.PromoteRequest(model=NAME, force="force" in words)
        for word in words:
            if word.isdigit():
                request.version = int(word)
        reply = self._operator.ask(request)
        yield f"-> version {reply.version}"
        yield from _notes(reply.outcome)

    def _do_rollback(self, word: str = "") -> Iterator[str]:
        request = pb.RollbackRequest(model=NAME, end=word == "end")
        if word.isdigit():
            request.version = int(word)
        reply = self._operator.ask(request)
        yield f"-> version {reply.version}"
        yield from _notes(reply.outcome)

    def _do_reset(self) -> Iterator[str]:
        request = pb.ResetOverrideRequest(model=NAME)
        yield from _notes(self._operator.ask(request).outcome)

    # -- requests ------------------------------------------------------------------

    def _do_factor(self, number: str, factor: str) -> None:
        self._env.puppet(NAME, int(number)).factor = float(factor)

    def _do_fails(self, number: str) -> None:
        self._env.puppet(NAME, int(number)).error = Internal("broken")

    def _do_request(self, *words: str) -> Iterator[str]:
        named = dict(word.split("=", 1) for word in words if "=" in word)
        times = next((int(word) for word in words if word.isdigit()), 1)
        wanted = int(named["version"]) if "version" in named else None
        label, key = named.get("label"), named.get("key", "")
        answers: Counter[str] = Counter()
        for index in range(times):
            # Callers of their own, so that a share is the same in every run.
            caller = key or f"caller-{index}"
            try:
                version = self._env.request(NAME, caller, version=wanted, label=label)
                answers[f"{NAME}/{version}"] += 1
            except ServingError as error:
                answers[str(error)] += 1
        for who, num in sorted(answers.items()):
            yield f"-> {who}" if times == 1 else f"-> {num} x {who}"

    def _do_report(self) -> Iterator[str]:
        request = pb.ListModelsRequest(models=[NAME])
        (report,) = self._operator.ask(request).models
        primary = report.primary if report.HasField("primary") else "none"
        yield f"= primary {primary}"
        for label in report.labels:
            meant = label.version if label.HasField("version") else "nothing yet"
            yield f"= label {label.label} means {meant}"
        if report.overridden:
            yield "= overridden"
        if not report.HasField("canary"):
            return
        trial = report.canary
        phase = pb.CanaryReport.Phase.Name(trial.phase)
        yield f"= canary {trial.canary.version} {phase} {trial.reason}".rstrip()
        yield (
            f"= teed {trial.num_teed_requests}, split {trial.num_split_to_primary} "
            f"to the primary and {trial.num_split_to_canary} to the canary"
        )
        if trial.total.num_requests:
            yield (
                f"= compared {trial.total.num_requests}: differ by at most "
                f"{trial.total.max_abs_diff:g}, {trial.total.mean_abs_diff:g} on average"
            )

    def _do_advance(self, seconds: str) -> None:
        self._env.clock.advance(float(seconds))


def _notes(outcome: pb.OverrideOutcome) -> Iterator[str]:
    for note in outcome.notes:
        yield f"-> {note}"


def operation_files() -> list[Path]:
    """Returns every operating scenario."""
    return sorted(FOLDER.glob("*.txt"))


def run_operation(
    path: Path, *, has_threads: bool
) -> tuple[list[Block], list[Block], list[str]]:
    """Returns the blocks as written and as they came out, and the file's end."""
    written, rest = parse(path.read_text())
    operation = Operation(has_threads=has_threads)
    happened = [
        Block(block.command, operation.run(block.command), block.preamble)
        for block in written
    ]
    operation.close()
    return written, happened, rest


def rewrite_operations() -> None:
    """Replaces the golden output of every operating scenario by what happens inline."""
    for path in operation_files():
        _, happened, rest = run_operation(path, has_threads=False)
        path.write_text(render(happened, rest))
