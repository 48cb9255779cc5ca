"""Every loader keeps what :class:`tfs.core.loader.Loader` promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.core.conformance.loader import LOADER_CHECKS, LoaderCheck
from tests.e2e.serving import export_scale
from tests.servables.placed_host import Host
from tfs.core.errors import DataLoss
from tfs.core.loader import Loader
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry
from tfs.testing.fake_loader import FakeLoader, LoaderLog

ID = ServableId("scale", 1)


@dataclass
class Loaders:
    """Loaders under test; see ``LoaderUnderTest``."""

    make: Callable[[], Loader[object]]
    make_broken: Callable[[], Loader[object]]
    num_held: Callable[[], int]
    id: ServableId = ID


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_scale(tmp_path_factory.mktemp("whole") / "scale", 1)


@pytest.fixture
def broken(version: Path, tmp_path: Path) -> Path:
    """The version, with a byte of its archive changed."""
    path = tmp_path / "1"
    path.mkdir()
    for file in version.iterdir():
        content = bytearray(file.read_bytes())
        if file.name == "model.pt":
            content[len(content) // 2] ^= 0xFF
        (path / file.name).write_bytes(content)
    return path


@pytest.fixture(params=["plain", "placed"])
def of_models(
    request: pytest.FixtureRequest, version: Path, broken: Path
) -> Iterator[Loaders]:
    """Loaders of a packaged model, on an interpreter and where a server places it."""
    host = Host()
    interpreter = InlineInterpreter("inline-conformance")

    def plain(path: Path) -> Loader[Servable]:
        return default_registry().loader(str(path), LoadContext(lambda _: interpreter))

    make: Callable[[Path], Loader[Servable]] = {
        "plain": plain,
        "placed": host.loader,
    }[request.param]

    def num_held() -> int:
        placed = sum(each.num_models for each in host.interpreters.values())
        return placed + interpreter.num_models

    yield Loaders(lambda: make(version), lambda: make(broken), num_held)
    host.close()
    interpreter.close()


@pytest.mark.parametrize("check", LOADER_CHECKS)
def test_loaders_of_models_keep_the_promises(
    check: LoaderCheck, of_models: Loaders
) -> None:
    """Whether it is placed, measured and warmed up, or only loaded."""
    check(of_models)


@pytest.mark.parametrize("check", LOADER_CHECKS)
def test_the_loader_of_tables_keeps_the_promises(
    check: LoaderCheck, tmp_path: Path
) -> None:
    """A platform without an interpreter holds what it loaded itself."""
    made: list[Loader[Servable]] = []

    def make(content: str) -> Loader[Servable]:
        path = tmp_path / f"v{len(made)}"
        path.mkdir()
        (path / "table.csv").write_text(content)
        made.append(default_registry().loader(str(path), LoadContext(_no_interpreter)))
        return made[-1]

    check(
        Loaders(
            lambda: make("item,price:float32\ns0,1\n"),
            lambda: make("item,price:float32\ns0,cheap\n"),
            lambda: sum(_is_loaded(loader) for loader in made),
        )
    )


@pytest.mark.parametrize("check", LOADER_CHECKS)
def test_the_fake_loader_keeps_the_promises(check: LoaderCheck) -> None:
    """What stands in for a loader in the managers' tests behaves as one."""
    log = LoaderLog()
    fault = DataLoss("broken")
    check(
        Loaders(
            lambda: FakeLoader(ID, ram_bytes=8, peak_bytes=4, log=log),
            lambda: FakeLoader(ID, errors=[fault] * 9, log=log),
            lambda: len(log.resident),
        )
    )


def _no_interpreter(_: object) -> InlineInterpreter:
    raise AssertionError("a table needs no interpreter")


def _is_loaded(loader: Loader[Servable]) -> bool:
    return getattr(loader, "_version", None) is not None
