"""The manifest for Kubernetes, read as text: what it says is what the server has."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.architecture.tree import ROOT
from tfs.cli.main import make_parser
from tfs.cli.serving.serve_arguments import read_flags
from tfs.handlers.health import LIVENESS
from tfs.server.config.server_config import read_config_text
from tfs.server.metrics.monitoring_config import read_monitoring_config
from tfs.server.options import ServerOptions

TEXT = (ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")
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
    assert set(values("port")) == {str(found.port)}


def test_it_asks_for_readiness_and_for_liveness() -> None:
    """A model that cannot be loaded takes no server down, but keeps requests away."""
    assert "service:" not in after("readinessProbe")
    assert values("service", after("livenessProbe")) == [LIVENESS]


def test_what_is_in_flight_is_answered_before_the_server_is_killed() -> None:
    """The grace period has the pause, the drain, and unloading in it."""
    (pause,) = re.findall(r"command: \[sleep, \"(\d+)\"\]", TEXT)
    (grace,) = values("terminationGracePeriodSeconds")
    drain_s = options().drain_timeout_s
    assert int(grace) >= int(pause) + drain_s + UNLOADING_S


def test_its_files_are_read(tmp_path: Path) -> None:
    """Config files come from a folder mounted as a whole, or they stay as they are."""
    found = options()
    data = after("data")
    config = read_config_text(after("models.config", data), "models.config")
    (model,) = config.models.values()
    path = tmp_path / "monitoring.config"
    path.write_text(after("monitoring.config", data))
    assert read_monitoring_config(str(path)) == values("prometheus.io/path")[0]
    places = mounts()
    for file in (found.model_config_file, found.monitoring_config_file):
        assert places[str(Path(file).parent)] == "config"
        assert Path(file).name in data
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
