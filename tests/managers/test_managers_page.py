"""docs/managers.md: what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "managers.md"


def test_the_examples_run_in_order() -> None:
    """Whoever copies them gets what the page says."""
    caching, static = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    answers = []
    for example in (caching, static):
        exec(example, names)
        answers.append(names["answer"])
    assert answers == ["/models/digits", "hello"]
