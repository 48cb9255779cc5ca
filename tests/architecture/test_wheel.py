"""What `pip install` gets: built once, looked into."""

from __future__ import annotations

import email
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, tracked_files

build = pytest.importorskip("hatchling.build", reason="hatchling is not installed")

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build.build_wheel(str(folder))
    return zipfile.ZipFile(folder / name)


def metadata_of(wheel: zipfile.ZipFile, name: str) -> str:
    """Returns a file of the wheel's own folder."""
    return next(
        wheel.read(each).decode()
        for each in wheel.namelist()
        if each.endswith(f".dist-info/{name}")
    )


def test_wheel_holds_the_packages_whole_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    """Every tracked file of a package is there: modules, stubs and py.typed; no tests."""
    tracked = {
        path.as_posix()
        for package in PACKAGES
        for path in tracked_files(f"{package}/*")
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert tracked - held == set()
    assert {name.partition("/")[0] for name in held} == set(PACKAGES)
    assert not [name for name in held if "/tests/" in name or name.endswith(".pyc")]


def test_wheel_brings_the_command_and_the_license(wheel: zipfile.ZipFile) -> None:
    """An installed TFS can be run by name, and says under which terms."""
    assert "tfs = tfs.cli.main:main" in metadata_of(wheel, "entry_points.txt")
    license_text = (ROOT / "LICENSE").read_text()
    assert metadata_of(wheel, "licenses/LICENSE") == license_text


def test_wheel_asks_for_what_the_project_needs(wheel: zipfile.ZipFile) -> None:
    """Its requirements without an extra are those of pyproject.toml."""
    told = email.message_from_string(metadata_of(wheel, "METADATA"))
    needed = [each for each in told.get_all("Requires-Dist", ()) if "extra" not in each]
    assert len(needed) == len(SETTINGS["project"]["dependencies"])
    assert told["Requires-Python"] == SETTINGS["project"]["requires-python"]


def test_sdist_may_leave_no_packaged_folder_out() -> None:
    """A wheel is built from the sdist, and so cannot hold more."""
    included = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {f"/{package}" for package in PACKAGES} <= set(included)
    assert all(
        (ROOT / Path(each.lstrip("/*"))).exists() or "*" in each for each in included
    )
