"""What was replaced of torch and of Python, looked at where something changed only."""

from __future__ import annotations

import builtins
import json
import threading
from typing import Any

import pytest
import torch

from tfs.runtime.guest.traces import process_surface
from tfs.runtime.guest.traces.process_surface import WatchedSurface


def _unknown() -> int:
    raise RuntimeError("this Python's dicts have no version")


@pytest.fixture(params=["with versions", "without"])
def watched(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> WatchedSurface:
    """A surface where dicts say that they changed, and one where they do not."""
    if request.param == "without":
        monkeypatch.setattr(process_surface, "find_version_word", _unknown)
    return WatchedSurface()


def test_what_did_not_change_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork a look at every function costs it the pages they lie on."""
    watched = WatchedSurface()
    before = watched.look()
    monkeypatch.setattr(
        process_surface, "_functions", lambda _: pytest.fail("it was looked at")
    )
    assert watched.look() is before


PATCHES: dict[str, tuple[object, str]] = {
    "torch.matmul": (torch, "matmul"),
    "Tensor.relu": (torch.Tensor, "relu"),
    "Module.forward": (torch.nn.Module, "forward"),
    "torch.nn.functional.gelu": (torch.nn.functional, "gelu"),
    "builtins.compile": (builtins, "compile"),
    "json.loads": (json, "loads"),
    "threading.Barrier": (threading, "Barrier"),
}


@pytest.mark.parametrize("words", PATCHES)
def test_a_replaced_function_is_told(
    watched: WatchedSurface, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Whoever owns it, or inherits it; and put back, it is no change."""
    owner, name = PATCHES[words]
    before = watched.look()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *_: None)
        assert watched.look().changes(before) == [words]
    assert watched.look().changes(before) == []


def test_a_function_that_a_class_replaces_is_told(
    watched: WatchedSurface, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes can be called as well, and are not compared themselves."""
    before = watched.look()
    monkeypatch.setattr(torch, "matmul", int)
    assert watched.look().changes(before) == ["torch.matmul"]


def test_what_is_added_is_no_change(
    watched: WatchedSurface, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every import of a part of torch adds something."""
    before = watched.look()
    monkeypatch.setattr(torch, "an_addition", len, raising=False)
    assert watched.look().changes(before) == []


def test_an_operator_that_follows_another_is_told(watched: WatchedSurface) -> None:
    """A new operator is noticed even if another went and their number is the same."""
    new_library: Any = torch.library.Library  # untyped
    first = new_library("tfs_torch_surface", "DEF")
    first.define("scaled(Tensor x) -> Tensor")
    before = watched.look()
    first._destroy()
    second = new_library("tfs_torch_surface", "DEF")
    try:
        second.define("shifted(Tensor x) -> Tensor")
        assert watched.look().changes(before) == [
            "operators of torch (tfs_torch_surface::shifted)"
        ]
    finally:
        second._destroy()
