"""docs/managers.md: what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "managers.md"


def test_the_examples_run_in_order(tmp_path: Path) -> None:
    """Whoever copies them gets what the page says."""
    version = tmp_path / "prices" / "1"
    version.mkdir(parents=True)
    (version / "prices.csv").write_text("bread,3\n")
    text = PAGE.read_text(encoding="utf-8")
    text = text.replace('"/data/prices"', repr(str(version.parent)))
    # Nobody writes to it any more: there is nothing to wait for.
    text = text.replace("platforms=True,", "platforms=True, settle_s=0.0,")
    names: dict[str, object] = {}
    answers = []
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(example, names)
        answers.append(names["answer"])
    assert answers == ["/models/digits", "hello", ["prices", str(version)]]
