"""docs/platforms.md: the platform that it shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.core.conformance.servable import run_task
from tests.servables.fakes import ID, FakeInterpreter
from tfs.core.dtype import STRING
from tfs.core.errors import DataLoss, ServingError
from tfs.core.servable import Servable
from tfs.core.tensor_view import TensorView
from tfs.servables.platform import LoadContext, OwnPlatform
from tfs.servables.registry import PlatformRegistry

PAGE = Path(__file__).parents[2] / "docs" / "platforms.md"


@pytest.fixture
def platform() -> OwnPlatform:
    (code,) = re.findall(
        r"```python tfs_greetings\.py\n(.*?)```", PAGE.read_text(), re.S
    )
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    made: OwnPlatform = names["Greetings"]()
    return made


def loaded(platform: OwnPlatform, path: Path) -> Servable:
    registry = PlatformRegistry([platform], entry_points=())
    loader = registry.loader(str(path), LoadContext(lambda _: FakeInterpreter()))
    loader.estimate_resources()
    loader.load(ID)
    servable = loader.servable
    loader.unload()
    return servable


def test_the_platform_of_the_page_answers(
    platform: OwnPlatform, tmp_path: Path
) -> None:
    """Whoever copies it has a platform that loads, answers and refuses."""
    assert not platform.recognizes(str(tmp_path))
    (tmp_path / "greeting.txt").write_text("Hello NAME!")
    servable = loaded(platform, tmp_path)
    names = TensorView(STRING, (2,), (b"Ann", b"Bob"))
    outcome = run_task(servable, "serving_default", {"name": names})
    assert not isinstance(outcome, ServingError), outcome
    assert outcome["text"].data == (b"Hello Ann!", b"Hello Bob!")
    (tmp_path / "greeting.txt").write_text("Hello!")
    with pytest.raises(DataLoss, match="where NAME is"):
        loaded(platform, tmp_path)
