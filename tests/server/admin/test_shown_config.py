"""What ``config show`` prints changes nothing where it is loaded, whatever came before."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.admin.admin_operator import Operator
from tests.server.environment import Environment, config, model
from tfs.core.errors import ServingError
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import parse_config_text

NAMES = ("a", "b")
VERSIONS = range(1, 5)  # of which the first three are there

Step: TypeAlias = Callable[[Operator], object]


@st.composite
def _traffic(draw: st.DrawFn) -> str:
    primary = draw(st.none() | st.sampled_from(VERSIONS))
    canary = draw(st.none() | st.sampled_from([v for v in VERSIONS if v != primary]))
    fields = "" if primary is None else f"primary: {primary} "
    if canary is not None:
        guard = draw(
            st.sampled_from(("", "guard { min_samples: 2 max_error_rate: 0.1 }"))
        )
        share = draw(st.sampled_from((0, 0.3, 1)))
        fields += (
            f"canary {{ version: {canary} tee_fraction: {share} "
            f"split_fraction: {share / 2} {guard} }}"
        )
    return f"traffic {{ {fields} }}"


@st.composite
def _model(draw: st.DrawFn, name: str) -> str:
    parts = [
        draw(
            st.sampled_from(
                (
                    "",
                    "all {}",
                    "latest { num_versions: 2 }",
                    "specific { versions: 1 versions: 4 }",
                    "specific {}",
                )
            ).map(lambda policy: f"model_version_policy {{ {policy} }}")
        )
    ]
    choices = (
        _traffic(),
        st.sampled_from(VERSIONS).map(
            lambda version: f'version_labels {{ key: "a \\"b" value: {version} }}'
        ),
        st.just("transition: RESOURCE_PRESERVING"),
        st.just("runtime { num_interpreters: 2 }"),
    )
    parts += [draw(each) for each in choices if draw(st.booleans())]
    base_path = draw(st.sampled_from(("", "/models/elsewhere")))
    return model(name, base_path, " ".join(parts))


@st.composite
def _models(draw: st.DrawFn) -> tuple[str, ...]:
    return tuple(draw(_model(name)) for name in NAMES if draw(st.booleans()))


@st.composite
def _step(draw: st.DrawFn) -> Step:
    name, version = draw(st.sampled_from(NAMES)), draw(st.sampled_from(VERSIONS))
    models = draw(_models())
    origin = draw(
        st.sampled_from(
            (Origin.APPLY_CONFIG, Origin.RELOAD_REQUEST, Origin.CONFIG_FILE)
        )
    )
    path = f"/models/{name}/{version}"
    steps: tuple[Step, ...] = (
        lambda o: o.env.apply(*models, origin=origin),
        lambda o: o.ask(_canary(name, version)),
        lambda o: o.ask(pb.SetCanaryRequest(model=name)),
        lambda o: o.ask(pb.PromoteRequest(model=name, version=version)),
        lambda o: o.ask(pb.PromoteRequest(model=name, force=True)),
        lambda o: o.ask(pb.RollbackRequest(model=name)),
        lambda o: o.ask(pb.RollbackRequest(model=name, version=version)),
        lambda o: o.ask(pb.RollbackRequest(model=name, end=True)),
        lambda o: o.ask(pb.ResetOverrideRequest(model=name)),
        lambda o: o.env.add_version(name, version),
        lambda o: o.env.files.remove(path),
        lambda o: o.env.broken.add(path),
        lambda o: [o.env.request(name, str(key)) for key in range(4)],
        lambda o: o.env.clock.advance(30),
    )
    return draw(st.sampled_from(steps))


def _canary(name: str, version: int) -> pb.SetCanaryRequest:
    request = pb.SetCanaryRequest(model=name)
    request.canary.version = version
    request.canary.tee_fraction = 1
    request.canary.guard.min_samples = 2
    request.canary.guard.max_mean_abs_diff = 0.01
    return request


def _view(env: Environment) -> Mapping[str, object]:
    """Returns all of a server that callers and operators can see."""
    view: dict[str, object] = {}
    for name in NAMES:
        try:
            view[name] = env.served(name)
        except ServingError as error:
            view[name] = str(error)
        trial = env.core.served.trial(name)
        view[f"trial of {name}"] = trial and (
            trial.settings,
            trial.rejected,
            trial.total,
        )
        view[f"labels of {name}"] = dict(env.core.served.labels(name))
        view[f"versions of {name}"] = env.available(name)
    running = env.core.config.running
    view["overrides"] = None if running is None else dict(running.overrides)
    return view


@settings(deadline=None, max_examples=40)
@given(
    _models(),
    st.sampled_from((Origin.CONFIG_FILE, Origin.COMMAND_LINE, Origin.MODEL_REPOSITORY)),
    st.lists(_step(), max_size=10),
)
def test_what_is_shown_changes_nothing_when_it_is_loaded(
    models: tuple[str, ...], origin: Origin, steps: list[Step]
) -> None:
    """Loading the shown config changes no answer, trial, label, override or version."""
    with tempfile.TemporaryDirectory() as state_dir:
        env = Environment(state_dir)
        for name in (*NAMES, "elsewhere"):
            for version in VERSIONS[:3]:
                env.add_version(name, version)
        env.start(config(*models), origin)
        operator = Operator(env)
        for step in steps:
            # What cannot be done, or asks for what is not there, changes nothing.
            with contextlib.suppress(ServingError, FileNotFoundError):
                step(operator)
            env.look()
        shown = operator.show()
        assert parse_config_text(shown.effective_text, "shown") == shown.effective
        before, events = _view(env), list(env.log.events)
        request = pb.ApplyConfigRequest(text=shown.effective_text)
        for _ in range(2):
            reply = operator.ask(request)
            assert reply.applied
            assert {each.change for each in reply.models} <= {pb.ModelOutcome.UNCHANGED}
            env.look()
            assert _view(env) == before
            assert env.log.events == events
            assert operator.show().effective == shown.effective
