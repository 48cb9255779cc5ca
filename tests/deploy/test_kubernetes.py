"""The manifests for Kubernetes: what they say is what the server has."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.architecture.tree import ROOT
from tfs.cli.main import make_parser
from tfs.cli.serving.serve_arguments import read_flags
from tfs.handlers.health import LIVENESS
from tfs.server.config.server_config import read_config_text
from tfs.server.options import ServerOptions

FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
MANIFESTS = sorted(set(FOLDER.rglob("*.yaml")) - set(KUSTOMIZATIONS))
TEXT = "".join(
    path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("base/*.yaml"))
)
UNLOADING_S = 5


def after(key: str, text: str = TEXT) -> str:
    """Returns what is nested below a key, without its indentation; the first such key."""
    head = re.search(rf"^( *)(?:- )?{re.escape(key)}: *\|?\n", text, re.M)
    assert head is not None, f"no {key}"
    lines = []
    for line in text[head.end() :].splitlines():
        depth = len(line) - len(line.lstrip())
        is_list = depth == len(head[1]) and line.lstrip().startswith("- ")
        if line and depth <= len(head[1]) and not is_list:
            break
        lines.append(line)
    return textwrap.dedent("\n".join(lines)) + "\n"


def values(key: str, text: str = TEXT) -> list[str]:
    """Returns what stands behind a key, wherever it does; without quotation marks."""
    found = re.findall(rf"^ *(?:- )?{re.escape(key)}: *(\S.*)$", text, re.M)
    return [value.strip().strip('"') for value in found]


def flags() -> list[str]:
    lines = after("args").splitlines()
    return [line[2:] for line in lines if line.startswith("- ")]


def options() -> ServerOptions:
    """Returns what the server makes of the manifest's arguments."""
    arguments, unknown = make_parser().parse_known_args(["serve", *flags()])
    assert unknown == []
    return read_flags(arguments)


def mounts() -> dict[str, str]:
    text = after("volumeMounts")
    return dict(zip(values("mountPath", text), values("name", text), strict=True))


def test_its_flags_are_the_servers() -> None:
    """Commands come in by the socket alone, where `tfs` looks for it within the pod."""
    found = options()
    assert found.admin_from == frozenset()
    assert found.admin_socket_path == "/run/tfs/admin.sock"


def test_its_ports_are_the_servers() -> None:
    """The ports for clients, probes and metrics are those that the server opens."""
    found = options()
    ports = values("containerPort")
    assert ports == [str(found.port), str(found.rest_api_port)]
    assert values("prometheus.io/port") == [str(found.rest_api_port)]
    assert set(values("port")) == set(ports)


def test_it_asks_for_readiness_and_for_liveness() -> None:
    """A model that cannot be loaded takes no server down, but keeps requests away."""
    assert "service:" not in after("readinessProbe")
    assert values("service", after("livenessProbe")) == [LIVENESS]


def test_what_is_in_flight_is_answered_before_the_server_is_killed() -> None:
    """The grace period has the pause, the drain, and unloading in it."""
    (grace,) = values("terminationGracePeriodSeconds")
    found = options()
    assert found.drain_wait_s > 0
    assert int(grace) >= found.drain_wait_s + found.drain_timeout_s + UNLOADING_S


def test_its_files_are_read() -> None:
    """Config files come from a folder mounted as a whole, or they stay as they are."""
    found = options()
    data = after("data")
    config = read_config_text(after("models.config", data), "models.config")
    (model,) = config.models.values()
    places = mounts()
    file = Path(found.model_config_file)
    assert places[str(file.parent)] == "config"
    assert file.name in data
    assert "subPath:" not in TEXT
    assert places[str(Path(model.base_path).parent)] == "models"


def test_what_the_server_writes_to_is_a_volume() -> None:
    """Its own file system is read-only, and models run as a user without rights."""
    found = options()
    places = mounts()
    assert {found.state_dir, str(Path(found.admin_socket_path).parent), "/tmp"} <= {
        *places
    }
    assert values("readOnlyRootFilesystem") == ["true"]
    assert values("allowPrivilegeEscalation") == ["false"]
    user = re.findall(
        r"useradd .*--uid (\d+)", (ROOT / "deploy/Dockerfile").read_text()
    )
    assert values("runAsUser") == user
    for name in {*places.values()}:
        assert f"- name: {name}\n" in after("volumes")


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_has_what_it_names(path: Path) -> None:
    """`kubectl apply -k` finds each of its resources, and no file is left out."""
    named = yaml.safe_load(path.read_text())["resources"]
    assert named
    assert [name for name in named if not (path.parent / name).exists()] == []
    files = {each.name for each in path.parent.glob("*.yaml")} - {path.name}
    assert {name for name in named if name.endswith(".yaml")} == files


def test_an_autoscaler_is_alone_in_saying_how_many_servers_there_are() -> None:
    """A number in the Deployment would come back with each `kubectl apply`."""
    folder = FOLDER / "overlays/hpa"
    scaled = yaml.safe_load((folder / "autoscaler.yaml").read_text())["spec"]
    target = {key: scaled["scaleTargetRef"][key] for key in ("kind", "name")}
    (patch,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    assert patch["target"] == target
    assert yaml.safe_load(patch["patch"]) == [
        {"op": "remove", "path": "/spec/replicas"}
    ]


def test_the_fleet_is_alone_in_saying_how_many_servers_a_job_has() -> None:
    """As the autoscaler is; other changes of the job are applied."""
    job = yaml.safe_load((FOLDER / "fleet/job.yaml").read_text())
    assert "replicas" not in job["spec"]


def test_kubernetes_takes_the_manifests() -> None:
    """They are valid by Kubernetes' own schemas, without a field that it does not know."""
    validate = [sys.executable, "-m", "kubernetes_validate", "--strict"]
    done = subprocess.run(
        [*validate, *map(str, MANIFESTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
