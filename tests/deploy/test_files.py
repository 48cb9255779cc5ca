"""The Dockerfile and the systemd unit, read as text."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest

from tests.architecture.tree import ROOT

HARDENING = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectControlGroups": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
}


def read_dockerfile() -> list[list[str]]:
    """Returns the Dockerfile's instructions, continued lines joined, split in words."""
    text = (ROOT / "deploy/Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [line.split() for line in joined.splitlines() if line.strip()]


def read_unit() -> dict[str, dict[str, str]]:
    """Returns the unit's sections; a repeated key would be an error here."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in (ROOT / "deploy/tfs.service").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
            continue
        key, separator, value = line.partition("=")
        assert separator, f"not an assignment: {line}"
        assert key not in section, f"assigned twice: {key}"
        section[key] = value
    return sections


def last_stage() -> list[list[str]]:
    instructions = read_dockerfile()
    starts = [i for i, words in enumerate(instructions) if words[0] == "FROM"]
    assert len(starts) == 2
    return instructions[starts[-1] :]


def test_image_keeps_tensorflow_servings_container_contract() -> None:
    """Ports, variables and entry point are where existing deployments expect them."""
    stage = last_stage()
    env = dict(
        word.split("=", 1) for words in stage if words[0] == "ENV" for word in words[1:]
    )
    assert env["MODEL_NAME"] == "model"
    assert env["MODEL_BASE_PATH"] == "/models"
    assert ["EXPOSE", "8500", "8501"] in stage
    assert ["ENTRYPOINT", '["/usr/bin/tf_serving_entrypoint.sh"]'] in stage
    assert any(words[0] == "HEALTHCHECK" for words in stage)


def test_image_runs_as_a_user_without_rights() -> None:
    """The server is not root, and nothing later in the file makes it root again."""
    users = [words[1] for words in last_stage() if words[0] == "USER"]
    assert users == ["tfs"]


def test_image_installs_every_dependency_of_the_package() -> None:
    """The cached layer holds what pyproject.toml asks for, all of it pinned."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=]", spec)[0] for spec in project["dependencies"]}
    installs = [
        words
        for words in read_dockerfile()
        if words[0] == "RUN" and "pip" in words and "install" in words
    ]
    assert needed <= {word for words in installs for word in words}
    assert all("constraints.txt" in words for words in installs)


def test_files_that_the_image_copies_exist_and_are_let_in() -> None:
    """A COPY of a file the ignore list keeps out would break the build only there."""
    ignore = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for words in read_dockerfile()
        if words[0] == "COPY" and not words[1].startswith("--from")
        for source in words[1:-1]
    }
    assert copied == allowed
    assert [name for name in sorted(copied) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("key", "value"), HARDENING.items())
def test_unit_takes_rights_away(key: str, value: str) -> None:
    """Model code is foreign code: the unit leaves it nothing it does not need."""
    assert read_unit()["Service"].get(key) == value


def test_unit_lets_the_server_drain_before_it_is_killed() -> None:
    """Stopping signals the server alone and gives requests in flight time."""
    service = read_unit()["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) >= 30


def test_unit_starts_the_server_by_an_absolute_path() -> None:
    """systemd takes no relative command, and flags are TensorFlow Serving's."""
    program, *arguments = shlex.split(read_unit()["Service"]["ExecStart"])
    assert program.startswith("/")
    assert arguments[0] == "serve"
    assert any(argument.startswith("--model_config_file=/") for argument in arguments)
    assert arguments[-1] == "$TFS_FLAGS"


def test_unit_keeps_overrides_and_lets_commands_find_the_server() -> None:
    """Rollbacks last over restarts, and the admin socket is where commands look."""
    service = read_unit()["Service"]
    words = service["ExecStart"].replace("%S", "/var/lib").replace("%t", "/run").split()
    assert f"--state_dir=/var/lib/{service['StateDirectory']}" in words
    assert service["RuntimeDirectory"] == "tfs"
    assert "--admin_socket_path=/run/tfs/admin.sock" in words
