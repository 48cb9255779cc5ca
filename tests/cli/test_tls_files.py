"""tfs.cli.tls_files."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tfs.cli.connection import credentials_of
from tfs.core.errors import InvalidArgument


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The paths of an authority, a key and a certificate."""
    made = Certificates()
    texts = dict(zip(("key", "cert"), made.client_pem(), strict=True))
    texts["ca"] = made.authority
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    return {name: str(tmp_path / name) for name in texts}


def credentials(ca: str, key: str, cert: str) -> object:
    return credentials_of(argparse.Namespace(ca=ca, key=key, cert=cert))


def test_files_of_the_right_kind_are_taken(files: dict[str, str]) -> None:
    """An authority alone, or all three."""
    assert credentials(files["ca"], "", "") is not None
    assert credentials(files["ca"], files["key"], files["cert"]) is not None


@pytest.mark.parametrize(
    ("ca", "key", "cert", "wrong", "kind"),
    [
        ("key", "", "", "key", "CERTIFICATE"),
        ("ca", "cert", "cert", "cert", "PRIVATE KEY"),
        ("ca", "key", "key", "key", "CERTIFICATE"),
    ],
)
def test_a_file_of_another_kind_is_named(
    files: dict[str, str], ca: str, key: str, cert: str, wrong: str, kind: str
) -> None:
    """grpc would say that nobody listens at the address."""
    named = {**files, "": ""}
    with pytest.raises(InvalidArgument) as caught:
        credentials(named[ca], named[key], named[cert])
    assert caught.value.message == f"{files[wrong]} holds no {kind} in PEM form"


@pytest.mark.parametrize(
    "words", [["predict", "m", "--ca_file"], ["status", "--address", "a:1", "--ca"]]
)
def test_a_handshake_that_fails_is_told_once(words: list[str]) -> None:
    """The command tells of a failed handshake once; grpc would log each try."""
    code = (
        "import os, sys\n"
        "from tfs.cli.main import main\n"
        "assert 'grpc' not in sys.modules\n"
        "status = main(sys.argv[1:])\n"
        "sys.exit((status, os.environ['GRPC_VERBOSITY']) != (1, 'NONE'))\n"
    )
    command = [sys.executable, "-c", code, *words, "/gone"]
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr


def test_a_file_that_cannot_be_read_is_named(files: dict[str, str]) -> None:
    """An unreadable file is named with the system's reason."""
    with pytest.raises(InvalidArgument, match=r"/gone: No such file"):
        credentials("/gone", files["key"], files["cert"])
