"""Users' commands: each a whole change, or a refusal that leaves everything as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted.controller import Controller, parse_model_config, read_config
from tfs.hosted.fleet import Job
from tfs.hosted.fleet_store import FleetStore
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2

ModelConfig = model_server_config_pb2.ModelConfig
MIB = 1 << 20


def check(config: ModelConfig) -> None:
    if config.model_platform == "absent":
        raise InvalidArgument("no such platform")


def config(name: str, extra: str = "") -> ModelConfig:
    return parse_model_config(f'name: "{name}" base_path: "/models/{name}" {extra}')


@pytest.fixture
def store(tmp_path: Path) -> FleetStore:
    return FleetStore(str(tmp_path / "fleet.db"))


@pytest.fixture
def controller(store: FleetStore) -> Controller:
    made = Controller(store, check, lambda _: 10 * MIB)
    made.add_job(Job("a", 100 * MIB))
    made.add_job(Job("b", 100 * MIB))
    return made


def test_a_model_gets_a_place_with_room_for_its_swaps(controller: Controller) -> None:
    """Two versions are loaded during a swap, one where the old one goes first."""
    controller.add_model(config("m"))
    controller.add_model(config("gap", "transition: RESOURCE_PRESERVING"))
    fleet = controller.add_model(
        config("both", "model_version_policy { latest { num_versions: 2 } }")
    ).fleet
    assert [fleet.models[n].memory_bytes // MIB for n in ("m", "gap", "both")] == [
        20,
        10,
        30,
    ]
    assert all(fleet.placement.values())


def test_what_no_server_would_take_is_refused(controller: Controller) -> None:
    """A wrong config would be refused together with its neighbours'."""
    with pytest.raises(InvalidArgument):
        controller.add_model(config("m", 'model_platform: "absent"'))
    with pytest.raises(InvalidArgument):
        parse_model_config("nonsense: 1")
    assert not controller.fleet().models


def test_what_has_no_room_is_refused_whole(controller: Controller) -> None:
    """The others keep their places, and nothing of the new one is kept."""
    before = controller.add_model(config("m"), memory_bytes=60 * MIB)
    with pytest.raises(ResourceExhausted, match="add a serving job"):
        controller.add_model(config("wide"), memory_bytes=60 * MIB, min_replicas=2)
    with pytest.raises(AlreadyExists):
        controller.add_model(config("m"))
    assert controller.fleet() == before.fleet


def test_a_job_that_goes_has_its_models_moved(controller: Controller) -> None:
    """It does not leave while its models have no other place, unless told so."""
    controller.add_model(config("m"), memory_bytes=60 * MIB, min_replicas=2)
    with pytest.raises(ResourceExhausted):
        controller.remove_job("a")
    with pytest.raises(NotFound):
        controller.remove_job("absent")
    fleet = controller.remove_job("a", force=True).fleet
    assert fleet.placement == {"m": ("b",)}
    controller.add_job(Job("c", 60 * MIB))
    assert set(controller.fleet().placement["m"]) == {"b", "c"}


def test_a_job_leaves_when_it_has_nothing_left_to_do(controller: Controller) -> None:
    """A leaving job takes no models and goes when it is empty; others stay."""
    controller.add_model(config("m"))
    (at,) = controller.fleet().placement["m"]
    (other,) = {"a", "b"} - {at}
    fleet = controller.remove_job(at).fleet
    assert fleet.placement == {"m": (other,)}
    assert fleet.jobs[at].is_leaving
    controller.drop_job(other)
    assert set(controller.drop_job(at).fleet.jobs) == {other}
    assert controller.drop_job(at).fleet.placement == {"m": (other,)}


def test_a_job_that_is_down_is_replaced_and_welcome_back(
    controller: Controller,
) -> None:
    """Its models go where there is room; what is elsewhere by then stays there."""
    controller.add_model(config("m"))
    (at,) = controller.fleet().placement["m"]
    (other,) = {"a", "b"} - {at}
    assert controller.note_job(at, is_down=True).fleet.placement == {"m": (other,)}
    assert controller.note_job(at, is_down=False).fleet.placement == {"m": (other,)}
    number = controller.note_job(at, is_down=False).number
    assert controller.note_job("absent", is_down=True).number == number


def test_replicas_follow_load_within_limits_and_room(controller: Controller) -> None:
    """Load asks for no more than was allowed, nor for what has no room."""
    controller.add_model(config("m"), memory_bytes=60 * MIB, max_replicas=5)
    assert len(controller.follow_load({"m": 2}).fleet.placement["m"]) == 2
    assert (
        controller.follow_load({"m": 3, "absent": 2}).fleet.models["m"].num_replicas
        == 2
    )
    controller.add_job(Job("c", 100 * MIB))
    assert len(controller.follow_load({"m": 9}).fleet.placement["m"]) == 2
    assert len(controller.follow_load({"m": 3}).fleet.placement["m"]) == 3
    assert len(controller.follow_load({"m": 0}).fleet.placement["m"]) == 1
    assert len(controller.scale("m", 2).fleet.placement["m"]) == 2
    with pytest.raises(ResourceExhausted):
        controller.scale("m", 4)
    with pytest.raises(NotFound, match="there are: m"):
        controller.scale("absent", 1)


def test_traffic_goes_into_the_model_s_config(controller: Controller) -> None:
    """Canary, promotion and rollback are what every job is told."""
    controller.add_model(config("m", 'version_labels { key: "x" value: 1 }'))
    traffic = model_config_pb2.Traffic(primary=1)
    traffic.canary.version = 2
    model = controller.set_traffic("m", traffic, "canary").fleet.models["m"]
    assert read_config(model).traffic == traffic
    assert read_config(model).version_labels["x"] == 1
    model = controller.set_traffic("m", None, "end").fleet.models["m"]
    assert not read_config(model).HasField("traffic")
    with pytest.raises(NotFound):
        controller.set_traffic("absent", None, "end")


def test_estimates_give_way_to_what_was_measured(
    controller: Controller, store: FleetStore
) -> None:
    """A measurement replaces an estimate, unless it is close; never a stated size."""
    controller.add_model(config("guessed"))
    controller.add_model(config("said"), memory_bytes=MIB)
    controller.learn({"guessed": 11 * MIB, "said": 50 * MIB, "gone": MIB})
    assert controller.fleet().models["guessed"].memory_bytes == 20 * MIB
    controller.learn({"guessed": 30 * MIB, "said": 50 * MIB})
    fleet = controller.fleet()
    assert fleet.models["guessed"].memory_bytes == 60 * MIB
    assert fleet.models["said"].memory_bytes == MIB
    assert store.history(1)[0].why == "memory as measured"


def test_a_model_that_goes_leaves_its_room(controller: Controller) -> None:
    """What had no place gets it."""
    controller.add_model(config("m"), memory_bytes=60 * MIB, min_replicas=2)
    with pytest.raises(ResourceExhausted):
        controller.add_model(config("next"), memory_bytes=60 * MIB)
    assert controller.remove_model("m").fleet.placement == {}
    controller.add_model(config("next"), memory_bytes=60 * MIB)
    with pytest.raises(NotFound):
        controller.remove_model("m")


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_replicas", 0), ("max_replicas", 0), ("memory_bytes", 0), ("name", "")],
)
def test_values_that_make_no_sense_cannot_be_made(
    controller: Controller, field: str, value: object
) -> None:
    """A fleet holds only models that could be served."""
    controller.add_model(config("m"))
    model = controller.fleet().models["m"]
    changed: dict[str, object] = {field: value}
    with pytest.raises(InvalidArgument):
        replace(model, **changed)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        Job("", 1)
    with pytest.raises(InvalidArgument):
        Job("a", 0)


def test_an_estimate_that_cannot_be_made_is_told(store: FleetStore) -> None:
    """Without one, and without a size, there is no model."""

    def unseen(_: str) -> int:
        raise FailedPrecondition("cannot be looked at from here")

    made = Controller(store, check, unseen)
    made.add_job(Job("a", 100 * MIB))
    with pytest.raises(FailedPrecondition):
        made.add_model(config("m"))
    made.add_model(config("m"), memory_bytes=MIB)
