"""tfs.core.version.manifest."""

from __future__ import annotations

import json

import pytest

from tfs.core.version.manifest import read_strict


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}]}', "1.5", '"x"']
)
def test_other_texts_are_read_as_usual(text: str) -> None:
    """Keys may be equal in different objects."""
    assert read_strict(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', '[{"x": {"b": 1, "a": 2, "a": 3}}]', '{"a": {}, "a": 1}'],
)
def test_a_repeated_key_is_refused_by_name(text: str) -> None:
    """However deep it stands, and even if both values are equal."""
    with pytest.raises(ValueError, match="the key 'a' is there twice"):
        read_strict(text)


def test_what_is_no_json_is_refused_as_usual() -> None:
    """The error says where the text is wrong."""
    with pytest.raises(json.JSONDecodeError, match="line 1 column 2"):
        read_strict("{]")
