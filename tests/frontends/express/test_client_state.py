"""Options are refused when they make no sense."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tfs.core.errors import InvalidArgument
from tfs.frontends.express.client_state import ExpressOptions

NUMBERS = [option.name for option in fields(ExpressOptions) if option.name != "limits"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_must_be_positive(name: str, value: int) -> None:
    """There is no "off": an unbounded server is not on offer."""
    with pytest.raises(InvalidArgument, match=name):
        ExpressOptions(**{name: value})  # type: ignore[arg-type]
