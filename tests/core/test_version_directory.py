"""The version directory: written whole, read with suspicion."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tfs.core.dtype import DTYPES, FLOAT32
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.system.replaced_file import TEMPORARY_PREFIX
from tfs.core.version.manifest import (
    MANIFEST,
    Manifest,
    Producer,
    read_signatures,
    signature_to_json,
)
from tfs.core.version.version_layout import LAYOUTS, VERSION_FILES
from tfs.core.version_directory import (
    EXAMPLES,
    MAX_DESCRIPTION_BYTES,
    commit,
    file_digest,
    fingerprint,
    is_committed,
    new_version,
    payload_files,
    read_failure,
    read_manifest,
    verify_files,
)

SIGNATURES = {
    "serving_default": Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, 3))},
        {"y": TensorSpec(FLOAT32, (-1,))},
    )
}
PRODUCER = Producer(tfs="0.1.0", torch="2.13.0", created="2026-01-02T03:04:05Z")


def write_version(base_path: Path, version: int = 1) -> Path:
    with new_version(str(base_path), version) as folder:
        Path(folder, "model.pt").write_bytes(b"weights")
        Path(folder, "assets").mkdir()
        Path(folder, "assets", "vocabulary.txt").write_bytes(b"a\nb\n")
        commit(folder, "torch_package", SIGNATURES, {"pickle": "m"}, PRODUCER)
    return base_path / str(version)


# -- writing -----------------------------------------------------------------------------


def test_a_written_version_reads_back(tmp_path: Path) -> None:
    """What a writer promised is what a reader finds, and the files keep it."""
    path = write_version(tmp_path)
    assert is_committed(str(path))
    manifest = read_manifest(str(path))
    assert manifest.platform == "torch_package"
    assert manifest.signatures == SIGNATURES
    assert manifest.entry == {"pickle": "m"}
    assert manifest.producer == PRODUCER
    assert list(manifest.files) == ["assets/vocabulary.txt", "model.pt"]
    assert manifest.files["model.pt"].size_bytes == 7
    verify_files(str(path), manifest)


def test_a_version_appears_by_one_rename(tmp_path: Path) -> None:
    """There is a temporary directory and no version before the block ends."""
    with new_version(str(tmp_path), 3) as folder:
        assert Path(folder).parent == tmp_path
        assert Path(folder).name.startswith(TEMPORARY_PREFIX)
        Path(folder, "model.pt").write_bytes(b"weights")
        commit(folder, "torch_package", SIGNATURES, {}, Producer())
        assert [p.name for p in tmp_path.iterdir()] == [Path(folder).name]
    assert [p.name for p in tmp_path.iterdir()] == ["3"]
    assert (tmp_path / "3").stat().st_mode & 0o777 == 0o755


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An exception in the block removes what was written."""

    def write() -> None:
        with new_version(str(tmp_path), 1) as folder:
            Path(folder, "model.pt").write_bytes(b"weights")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert list(tmp_path.iterdir()) == []


def test_base_path_of_a_first_version_that_failed_is_gone_again(tmp_path: Path) -> None:
    """A failure leaves nothing behind, and nothing of others is taken away."""
    base = tmp_path / "base"
    with pytest.raises(ValueError, match="halfway"), new_version(str(base), 1):
        raise ValueError("halfway")
    assert not base.exists()
    base.mkdir()
    with pytest.raises(ValueError, match="halfway"), new_version(str(base), 1):
        raise ValueError("halfway")
    assert list(base.iterdir()) == []
    with pytest.raises(InvalidArgument, match="base path is empty"), new_version("", 1):
        pass


def test_a_version_without_a_manifest_is_not_published(tmp_path: Path) -> None:
    """A writer that forgets to commit learns it, and leaves nothing."""
    with (
        pytest.raises(FileNotFoundError),
        new_version(str(tmp_path), 1) as folder,
    ):
        Path(folder, "model.pt").write_bytes(b"weights")
    assert list(tmp_path.iterdir()) == []


def test_a_version_is_never_overwritten(tmp_path: Path) -> None:
    """The version that is there stays as it is, whoever comes first."""
    path = write_version(tmp_path)
    before = fingerprint(str(path))
    with (
        pytest.raises(FailedPrecondition, match="never overwritten"),
        new_version(str(tmp_path), 1),
    ):
        raise AssertionError("the block must not run")
    assert fingerprint(str(path)) == before


@pytest.mark.parametrize("version", [-3, 1 << 63, "3"])
def test_a_number_no_server_would_find_is_refused(tmp_path: Path, version: Any) -> None:
    """Nothing is written under a name that is no version."""
    with (
        pytest.raises(InvalidArgument, match="no whole number of up to 63 bits"),
        new_version(str(tmp_path / "base"), version),
    ):
        pass
    assert not (tmp_path / "base").exists()


def test_of_two_writers_of_one_version_one_wins(tmp_path: Path) -> None:
    """A version that appeared while another was written is not replaced."""

    def write() -> None:
        with new_version(str(tmp_path), 1) as folder:
            Path(folder, "model.pt").write_bytes(b"loser")
            commit(folder, "torch_package", SIGNATURES, {}, Producer())
            write_version(tmp_path)

    with pytest.raises(FailedPrecondition, match="never overwritten"):
        write()
    assert (tmp_path / "1" / "model.pt").read_bytes() == b"weights"
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("failing_call", range(1, 40))
def test_a_fault_at_any_call_publishes_all_or_nothing(
    tmp_path: Path, failing_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th system call fails: no half version, no leftovers, the error tells.

    Only the flush of the folder after the rename may fail with the version there.
    """
    calls = 0

    def counted(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing_call:
                raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "fsync", "chmod", "makedirs"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            write_version(tmp_path)
            failure = None
        except OSError as error:
            failure = error.errno
    assert failure in (None, 28)
    found = [p.name for p in tmp_path.iterdir()]
    assert found in ([], ["1"])
    if found:
        verify_files(str(tmp_path / "1"), read_manifest(str(tmp_path / "1")))
    assert failure or found


# -- reading -----------------------------------------------------------------------------


def test_a_directory_without_a_manifest_is_not_committed(tmp_path: Path) -> None:
    """No manifest, no version; a directory of that name is not one either."""
    assert not is_committed(str(tmp_path))
    with pytest.raises(NotFound, match=MANIFEST):
        read_manifest(str(tmp_path))
    with pytest.raises(NotFound):
        read_manifest(str(tmp_path / "absent"))
    (tmp_path / MANIFEST).mkdir()
    assert not is_committed(str(tmp_path))
    with pytest.raises(FailedPrecondition, match="cannot read"):
        read_manifest(str(tmp_path))


def good_form() -> dict[str, Any]:
    manifest = Manifest("torch_package", {}, SIGNATURES)
    form: dict[str, Any] = json.loads(manifest.to_json())
    return form


BROKEN: list[tuple[str, str]] = [
    ("", "Expecting value"),
    ("{", "Expecting"),
    ("[]", "not an object"),
    ("[" * 100_000, "."),
    (json.dumps({**good_form(), "format": 2}), "format 2 is not 1"),
    (json.dumps({k: v for k, v in good_form().items() if k != "format"}), "'format'"),
    (json.dumps({k: v for k, v in good_form().items() if k != "files"}), "'files'"),
    (json.dumps({k: v for k, v in good_form().items() if k != "platform"}), "platform"),
    (json.dumps({**good_form(), "files": []}), "."),
    (json.dumps({**good_form(), "files": {"a": {}}}), "size_bytes"),
    (json.dumps({**good_form(), "files": {"a": 3}}), "."),
    (json.dumps({**good_form(), "signatures": {}}), "non-empty"),
    (json.dumps({**good_form(), "signatures": {"a": {}}}), "signature 'a': missing"),
    (json.dumps({**good_form(), "producer": 3}), "."),
    (json.dumps({**good_form(), "entry": 3}), "."),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_bad_manifest_is_refused_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    """Whatever is wrong in the file, the error says where and what."""
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(DataLoss, match=message) as caught:
        read_manifest(str(tmp_path))
    assert str(tmp_path) in caught.value.message


def test_a_huge_manifest_is_refused_unread(tmp_path: Path) -> None:
    """Reading it would hold up every request, and no writer makes one."""
    (tmp_path / "servable.json").write_bytes(b" " * (MAX_DESCRIPTION_BYTES + 1))
    with pytest.raises(DataLoss, match="larger than 4 MiB"):
        read_manifest(str(tmp_path))


def test_a_manifest_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Binary rubbish is a bad manifest, not a crash."""
    (tmp_path / MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataLoss, match="UTF-8"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../secret", "a/../b", "a//b", "./a", "a/", "a\0b"]
)
def test_a_file_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    """A manifest cannot make the server read elsewhere."""
    form = {**good_form(), "files": {name: {"size_bytes": 0, "sha256": ""}}}
    (tmp_path / MANIFEST).write_text(json.dumps(form))
    with pytest.raises(DataLoss, match="leaves the version directory"):
        read_manifest(str(tmp_path))


def test_what_a_newer_writer_adds_is_skipped(tmp_path: Path) -> None:
    """Unknown keys beside the known ones do not stop a reader of format 1."""
    form = {**good_form(), "colour": "green"}
    (tmp_path / MANIFEST).write_text(json.dumps(form))
    assert read_manifest(str(tmp_path)).platform == "torch_package"


def test_hand_written_signatures_have_the_manifests_form() -> None:
    """signatures.json is the manifest's signatures object."""
    form = {name: signature_to_json(s) for name, s in SIGNATURES.items()}
    assert read_signatures(form, "/m/1") == SIGNATURES
    bad_forms: list[object] = [{}, [], None, {"a": 3}]
    for bad in bad_forms:
        with pytest.raises(InvalidArgument, match="/m/1"):
            read_signatures(bad, "/m/1")


def test_a_full_disk_is_told_with_the_version(tmp_path: Path) -> None:
    """What a write raises names no file, and who exports many asks which."""
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/7'"),
        new_version(str(tmp_path / "prices"), 7),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert not (tmp_path / "prices").exists()


# -- verifying ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is not there, and the manifest names it"),
        (lambda path: path.write_bytes(b"weight"), "6 bytes.*says 7"),
        (lambda path: path.write_bytes(b"WEIGHTS"), "sha256"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Any, message: str) -> None:
    """A missing, cut or changed file is named."""
    path = write_version(tmp_path)
    damage(path / "model.pt")
    with pytest.raises(DataLoss, match=message) as caught:
        verify_files(str(path), read_manifest(str(path)))
    assert "model.pt" in caught.value.message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(2, "No such file or directory"), DataLoss),
        (PermissionError(13, "Permission denied"), FailedPrecondition),
        (OSError(5, "Input/output error"), Unavailable),
        (OSError(116, "Stale file handle"), Unavailable),
        (TimeoutError(110, "Connection timed out"), Unavailable),
    ],
)
def test_a_store_that_does_not_answer_may_do_so_later(
    error: OSError, expected: type[ServingError]
) -> None:
    """What no further try would mend is told apart from what one may."""
    failure = read_failure(error, "cannot read model.pt")
    assert type(failure) is expected
    assert failure.message == f"cannot read model.pt: {error.strerror}"


def test_files_nobody_promised_do_not_matter(tmp_path: Path) -> None:
    """An added file is not damage, while one that is missing is."""
    path = write_version(tmp_path)
    (path / "README").write_text("hello")
    manifest = read_manifest(str(path))
    verify_files(str(path), manifest)
    assert "README" not in manifest.files
    (path / next(iter(manifest.files))).unlink()
    with pytest.raises(DataLoss):
        verify_files(str(path), manifest)


def test_a_digest_is_sha256(tmp_path: Path) -> None:
    """Any tool can check a file."""
    (tmp_path / "empty").write_bytes(b"")
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert file_digest(str(tmp_path / "empty")) == digest


# -- fingerprints ------------------------------------------------------------------------


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    """Writing, adding, removing and renaming show; reading does not."""
    path = write_version(tmp_path)
    seen = [fingerprint(str(path))]
    (path / "model.pt").read_bytes()
    assert fingerprint(str(path)) == seen[0]
    (path / "model.pt").write_bytes(b"other weights")
    seen.append(fingerprint(str(path)))
    (path / "extra").write_bytes(b"")
    seen.append(fingerprint(str(path)))
    (path / "extra").rename(path / "other")
    seen.append(fingerprint(str(path)))
    (path / MANIFEST).unlink()
    seen.append(fingerprint(str(path)))
    assert len(set(seen)) == len(seen)


def test_importing_a_versions_code_is_no_change(tmp_path: Path) -> None:
    """What an interpreter caches beside the code belongs to nobody's version."""
    path = write_version(tmp_path)
    before = fingerprint(str(path))
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / f"servable.{sys.implementation.cache_tag}.pyc").touch()
    assert fingerprint(str(path)) == before
    assert payload_files(str(path)) == ["assets/vocabulary.txt", "model.pt"]


# -- the page for users --------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "version-directory.md"


def blocks(kind: str) -> list[str]:
    """Returns the page's code blocks marked "json <kind>"."""
    return re.findall(rf"^```json {kind}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_the_pages_examples_are_valid() -> None:
    """What users copy from docs/version-directory.md is read as it stands."""
    (text,) = blocks("manifest")
    manifest = Manifest.from_json(text, "the page")
    assert json.loads(manifest.to_json()) == json.loads(text)
    (text,) = blocks("signatures")
    form = json.loads(text)
    read = read_signatures(form, "the page")
    assert {name: signature_to_json(s).keys() for name, s in read.items()} == {
        name: part.keys() for name, part in form.items()
    }


def test_the_page_names_every_field() -> None:
    """Every key, dtype and platform that a reader knows is on the page."""
    page = PAGE.read_text()
    examples = {
        key
        for text in (*blocks("manifest"), *blocks("signatures"))
        for key in re.findall(r'"([a-z0-9_]+)":', text)
    }
    fields = {
        "format", "platform", "files", "size_bytes", "sha256", "entry", "signatures",
        "producer", "method", "inputs", "outputs", "defaults", "labels", "features",
        "batched", "example", "dtype", "shape", "pad", "mask", "input", "kind",
        "default", "offset", "value",
    }  # fmt: skip
    assert fields <= examples
    for word in {*DTYPES, *LAYOUTS, *VERSION_FILES, MANIFEST, EXAMPLES}:
        assert f"`{word}`" in page or f"{word} " in page, word
