"""tfs.server.config.server_config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sources.version_policy import All, Latest, Specific
from tests.server.environment import config, model
from tfs.core.errors import InvalidArgument, ServingError
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.runtime.placement import Backend
from tfs.server.config.server_config import (
    config_text,
    parse_config_text,
    read_config_text,
    read_models,
    single_model,
)
from tfs.server.model_settings import (
    ModelSettings,
    RuntimeSettings,
)


def test_the_page_names_every_field_of_ours() -> None:
    """docs/configuration.md has a line for each field of a model, of runtime and guard."""
    page = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
    model_message = model_server_config_pb2.ModelConfig
    for message in (model_message, model_config_pb2.Runtime, model_config_pb2.Guard):
        for name in set(message.DESCRIPTOR.fields_by_name) - {"model_type"}:
            assert re.search(rf"^\| `{name}\b", page, re.M), name


def settings(extra: str) -> ModelSettings:
    """Reads the config of one model."""
    return read_config_text(config(model("a", "", extra)), "test").models["a"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", {"policy": Latest(1), "primary": None, "canary": None}),
        ("model_version_policy { latest { num_versions: 3 } }", {"policy": Latest(3)}),
        ("model_version_policy { latest { } }", {"policy": Latest(1)}),
        ("model_version_policy { all {} }", {"policy": All()}),
        (
            "model_version_policy { specific { versions: 2 versions: 1 } }",
            {"policy": Specific((2, 1))},
        ),
        ('version_labels { key: "x" value: 0 }', {"labels": {"x": 0}}),
        ("traffic { primary: 0 }", {"primary": 0}),
        ("transition: RESOURCE_PRESERVING", {"keeps_resources": True}),
        ("transition: AVAILABILITY_PRESERVING", {"keeps_resources": False}),
        (
            "traffic { canary { version: 2 } }",
            {"canary": model_config_pb2.Canary(version=2)},
        ),
        (
            "traffic { primary: 1 canary { version: 2 tee_fraction: 0.5 "
            "split_fraction: 0.25 guard { min_samples: 9 max_error_rate: 0.5 } } }",
            {
                "primary": 1,
                "canary": model_config_pb2.Canary(
                    version=2,
                    tee_fraction=0.5,
                    split_fraction=0.25,
                    guard=model_config_pb2.Guard(min_samples=9, max_error_rate=0.5),
                ),
            },
        ),
        (
            "runtime { backend: INLINE }",
            {"runtime": RuntimeSettings(Backend.INLINE)},
        ),
        ('runtime { device: "cpu" }', {"runtime": RuntimeSettings()}),
        (
            "runtime { backend: PROCESS isolation: REQUIRED num_interpreters: 2 }",
            {"runtime": RuntimeSettings(Backend.PROCESS, True, 2)},
        ),
    ],
)
def test_fields_are_read(extra: str, expected: dict[str, object]) -> None:
    """Each field means what docs/configuration.md says."""
    read = settings(extra)
    assert {name: getattr(read, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("traffic { primary: -1 }", "traffic.primary"),
        ("traffic { canary { } }", "canary.version is required"),
        ("traffic { canary { version: -2 } }", "canary.version"),
        ("traffic { primary: 2 canary { version: 2 } }", "is the primary"),
        ("traffic { canary { version: 2 tee_fraction: 1.5 } }", "tee_fraction"),
        ("traffic { canary { version: 2 split_fraction: nan } }", "split_fraction"),
        ("traffic { canary { version: 2 guard { min_samples: 0 } } }", "min_samples"),
        (
            "traffic { canary { version: 2 guard { max_error_rate: 2 } } }",
            "max_error_rate",
        ),
        (
            "traffic { canary { version: 2 guard { max_latency_ratio: -1 } } }",
            "max_latency_ratio",
        ),
        ('version_labels { key: "" value: 1 }', "label ''"),
        ('version_labels { key: "x" value: -1 }', "label 'x'"),
        ("model_version_policy { specific { versions: -1 } }", "specific"),
        ('runtime { device: "tpu" }', "device"),
        ("runtime { backend: INLINE isolation: REQUIRED }", "isolation REQUIRED"),
        ("runtime { num_interpreters: 5000 }", "num_interpreters"),
        ("runtime { intra_op_threads: 1025 }", "runtime.intra_op_threads must be <="),
        ("runtime { isolation: 7 }", "runtime.isolation"),
        ("runtime { backend: 77 }", "runtime.backend"),
        ("transition: 7", "transition: 7; it is AVAILABILITY_PRESERVING or"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(extra: str, words: str) -> None:
    """The message names the model and the field."""
    with pytest.raises(InvalidArgument) as caught:
        settings(extra)
    assert words in caught.value.message
    assert "model a" in caught.value.message


def test_request_logging_is_read() -> None:
    """Upstream's LoggingConfig says where, how many and on which servers to log."""
    read = settings(
        'logging_config { log_collector_config { type: "file" '
        'filename_prefix: "/logs/a" } sampling_config { sampling_rate: 0.25 '
        'per_task_sampling_configs { dc: "x" task_index: 3 sampling_rate: 1 } } }'
    ).logging
    assert read is not None
    assert read.log_collector_config.filename_prefix == "/logs/a"
    (task,) = read.sampling_config.per_task_sampling_configs
    assert (read.sampling_config.sampling_rate, task.sampling_rate) == (0.25, 1.0)
    assert (task.dc, task.task_index) == ("x", 3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("log_collector_config { type: 'x' }", "Cannot find LogCollector::Factory"),
        ("log_collector_config { filename_prefix: 'logs' }", "absolute path"),
        ("log_collector_config { filename_prefix: '/l\\000' }", "a zero byte"),
        (
            "log_collector_config { filename_prefix: '/l' } "
            "sampling_config { sampling_rate: 1.5 }",
            "sampling_rate must be in 0..1",
        ),
        ("custom_logging_config { type_url: 'x' }", "custom_logging_config"),
        (
            "log_collector_config { filename_prefix: '/l' } "
            "sampling_config { attributes: 1 }",
            "attributes",
        ),
    ],
)
def test_bad_request_logging_is_refused(fields: str, words: str) -> None:
    """What cannot be logged as asked is refused by name, never ignored."""
    with pytest.raises(ServingError) as caught:
        settings(f"logging_config {{ {fields} }}")
    assert words in caught.value.message
    assert "model a" in caught.value.message


def test_private_pythons_are_for_the_cpu() -> None:
    """Running a model elsewhere than asked for would be worse than refusing it."""
    assert settings("runtime { backend: DLMOPEN }").runtime.backend is Backend.DLMOPEN
    with pytest.raises(InvalidArgument, match=r"model a: runtime.*CPU only"):
        settings('runtime { backend: DLMOPEN device: "cuda" }')


def test_a_canary_does_not_cost_the_primary_its_place() -> None:
    """With the canary the newest, latest(1) still keeps the version before it."""
    canary = settings("traffic { canary { version: 2 } }")
    assert canary.aspired_policy() == Latest(1, besides=frozenset({2}))
    assert canary.aspired_policy({3}) == Latest(1, besides=frozenset({2, 3}))
    explicit = settings("traffic { primary: 1 canary { version: 2 } }")
    assert explicit.aspired_policy() == Latest(1)
    assert explicit.pinned_versions == {1, 2}


ANY = "[type.googleapis.com/google.protobuf.Any] {"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model_config_list {",
        "nonsense: 1",
        "model_config_list { config { transition: 99999999999999999999 } }",
        f"custom_model_config {{ {ANY * 2000} {'}' * 2001}",
    ],
)
def test_what_is_no_config_is_refused(text: str) -> None:
    """Empty, cut off or unknown: the reader says so."""
    with pytest.raises(ServingError):
        read_config_text(text, "test")


def test_a_syntax_error_does_not_quote_the_whole_file() -> None:
    """What is told of a file of noise is one line, and harmless to a terminal."""
    with pytest.raises(InvalidArgument) as caught:
        parse_config_text("\x1b\x00" * 100_000, "models.config")
    assert len(caught.value.message) < 1000
    assert caught.value.message.isprintable()
    assert "1:1" in caught.value.message


def test_an_empty_list_is_a_config() -> None:
    """Serving nothing can be said, in so many words."""
    assert read_config_text("model_config_list {}", "test").models == {}


def test_the_text_form_reads_back_equal() -> None:
    """What is written can be loaded."""
    text = config(
        model("a", "", "traffic { primary: 1 } transition: AVAILABILITY_PRESERVING")
    )
    parsed = parse_config_text(text, "test")
    assert parse_config_text(config_text(parsed), "test") == parsed


def test_single_model_mode_is_a_config_of_one() -> None:
    """--model_name and --model_base_path are a short way of saying it."""
    assert single_model("a", "/m").models["a"].base_path == "/m"


def test_every_wrong_model_is_told() -> None:
    """Whoever mends a config need not find its mistakes one by one."""
    wrong = [f'config {{ name: "m{n}" base_path: "relative{n}" }}' for n in range(12)]
    few = f"model_config_list {{ {' '.join(wrong[:2])} }}"
    with pytest.raises(InvalidArgument) as caught:
        read_config_text(few, "test")
    assert "m0" in caught.value.message
    assert "relative1" in caught.value.message
    many = f"model_config_list {{ {' '.join(wrong)} }}"
    with pytest.raises(InvalidArgument, match="and 2 more models are wrong"):
        read_config_text(many, "test")


def test_a_base_path_that_no_system_takes_is_refused() -> None:
    """A zero byte would stop whoever looks for it, and a line feed hides in every message."""
    text = 'model_config_list { config { name: "a" base_path: "/m\\000n" } }'
    with pytest.raises(InvalidArgument, match="model a: base_path has a control"):
        read_config_text(text, "a test")
    with pytest.raises(InvalidArgument, match=r"base_path has a control.*'/m\\n'"):
        read_config_text(text.replace("\\000n", "\\n"), "a test")


def test_a_model_without_a_name_is_told_by_its_base_path() -> None:
    """Among a thousand models, who is to know which of them it is."""
    text = 'model_config_list { config { name: "a" base_path: "/a" } config { base_path: "/b" } }'
    with pytest.raises(
        InvalidArgument, match="base path '/b' has no name; set its name"
    ):
        read_config_text(text, "test")


@pytest.mark.parametrize(
    ("name", "is_fine"),
    [
        ("a b", True),
        ("\u00fc\u3000\u4f60 \U0001f469\u200d\U0001f4bb", True),
        ("a\nb", False),
        ("a\x1b[31m", False),
        ("a\x85", False),
        ("a\u2028b", False),
    ],
)
def test_a_name_that_breaks_lines_is_refused(name: str, is_fine: bool) -> None:
    """It would write lines of its own into logs and tables."""
    message = model_server_config_pb2.ModelServerConfig()
    message.model_config_list.config.add(name=name, base_path="/m")
    models, errors = read_models(message)
    assert (name in models) == is_fine
    assert (name in errors) != is_fine


def test_settings_keep_nothing_of_the_message_they_were_read_from() -> None:
    """Settings outlive it by many configs, and a part of a message keeps all of it."""
    text = 'config { name: "m" base_path: "/m" traffic { primary: 1 canary { version: 2 } } }'
    config = read_config_text(f"model_config_list {{ {text} }}", "test")
    (listed,) = config.message.model_config_list.config
    listed.traffic.canary.version = 3
    canary = config.models["m"].canary
    assert canary is not None
    assert canary.version == 2


def test_the_gate_of_examples_is_closed_unless_somebody_opens_it() -> None:
    """A change of it loads versions anew, as any change of how they are loaded."""
    for extra, gates in (
        ("", True),
        ("examples_gate: true", True),
        ("examples_gate: false", False),
        ("examples_gate: false runtime { backend: PROCESS }", False),
    ):
        assert settings(extra).runtime.gates_examples is gates
    closed, opened = settings(""), settings("examples_gate: false")
    assert closed.runtime.fingerprint != opened.runtime.fingerprint
