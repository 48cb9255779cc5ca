"""tfs.server.ports.tls_file and listeners, and how options and transports use them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tfs.core.call import TlsOptions
from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.frontends.tls_context import server_context
from tfs.server.options import ServerOptions
from tfs.server.ports.listeners import listeners, tls_problems
from tfs.server.ports.tls_file import TlsFile, read_tls_file


@pytest.fixture(scope="module")
def made() -> Certificates:
    return Certificates()


@pytest.mark.parametrize("mutual", [False, True])
def test_an_upstream_ssl_config_is_read(
    made: Certificates, tmp_path: Path, mutual: bool
) -> None:
    """The fields of SSLConfig hold PEM contents and mean what they do upstream."""
    tls = read_tls_file(str(made.write_config(tmp_path, mutual=mutual)))
    assert tls == made.tls(mutual=mutual)
    assert "PRIVATE" not in repr(tls)


def test_what_the_page_writes_is_read(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/operations.md makes an SSLConfig of PEM files."""
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    Path("server.key").write_bytes(made.server_key)
    Path("server.pem").write_bytes(made.server_cert)
    exec(code, {})
    assert read_tls_file("ssl.config") == made.tls()


def test_certificates_that_do_not_fit_are_named(made: Certificates) -> None:
    """Each mistake is told by the field it is in, before a port opens."""
    other = Certificates()
    good = made.tls(mutual=True)
    cases: list[tuple[TlsOptions, str]] = [
        (replace(good, server_key=b""), "server_key is empty"),
        (replace(good, server_cert=b""), "server_cert is empty"),
        (replace(good, server_cert=b"/etc/cert.pem"), "server_cert and server_key"),
        (replace(good, server_key=other.server_key), "server_cert and server_key"),
        (replace(good, client_ca=b"nonsense"), "custom_ca"),
        (replace(good, client_ca=b""), "client_verify needs custom_ca"),
    ]
    for tls, words in cases:
        with pytest.raises(InvalidArgument, match=words) as caught:
            server_context(tls)
        assert "PRIVATE" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and one that is no SSLConfig are told apart; no key is shown."""
    with pytest.raises(FailedPrecondition, match="No such file"):
        read_tls_file(str(tmp_path / "none"))
    with pytest.raises(FailedPrecondition, match="--control_ssl_config_file=/none: No"):
        TlsFile("/none", "--control_ssl_config_file")
    bad = tmp_path / "bad"
    bad.write_text('server_key: "secret\nsecret"')
    with pytest.raises(InvalidArgument, match="Invalid protobuf file") as caught:
        read_tls_file(str(bad))
    assert "secret" not in str(caught.value)


def test_certificates_that_are_not_renewed_are_a_problem_of_the_server(
    made: Certificates, tmp_path: Path
) -> None:
    """They run out some day; who looks at `tfs status` reads it before that."""
    path = made.write_config(tmp_path)
    options = ServerOptions(model_base_path="/models/digits", ssl_config_file=str(path))
    doors = listeners(options)
    assert tls_problems(doors) == []
    path.write_text("server_key: ")
    (problem,) = tls_problems(doors)
    assert "certificates from before stay in use" in problem


def test_a_changed_file_is_read_again(made: Certificates, tmp_path: Path) -> None:
    """Renewed certificates are taken, and the same object stays while none are."""
    path = made.write_config(tmp_path)
    source = TlsFile(str(path))
    first = source.current()
    assert source.current() is first
    other = Certificates()
    other.write_config(tmp_path)
    assert source.current() == other.tls()
    path.touch()
    assert source.current() == other.tls()


def test_a_broken_file_keeps_what_was(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written, gone or of another kind: logged once per change, not taken."""
    path = made.write_config(tmp_path)
    source = TlsFile(str(path))
    first = source.current()
    assert source.problem == ""
    path.write_text("server_key: ")
    assert source.current() is first
    assert source.current() is first
    assert str(path) in source.problem
    assert caplog.text.count("event=certificates_kept") == 1
    path.unlink()
    assert source.current() is first
    made.write_config(tmp_path, mutual=True)
    assert source.current() is first
    assert "client_verify cannot change" in caplog.text
    assert "client_verify cannot change" in source.problem
    made.write_config(tmp_path)
    assert source.problem == ""
    assert "PRIVATE" not in caplog.text
