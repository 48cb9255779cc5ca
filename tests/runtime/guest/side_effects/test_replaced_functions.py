"""What was replaced of torch and of Python."""

from __future__ import annotations

import builtins
import json
import os
import threading
from typing import Any

import pytest
import torch

from tfs.runtime.guest import side_effects
from tfs.runtime.guest.side_effects import KnownFunctions, in_a_copy

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
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Whoever owns it, or inherits it; and put back, it is no change."""
    owner, name = PATCHES[words]
    before = KnownFunctions()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *_: None)
        assert before.replaced() == [words]
    assert before.replaced() == []


def test_a_function_that_a_class_replaces_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Classes can be called as well, and are not compared themselves."""
    before = KnownFunctions()
    monkeypatch.setattr(torch, "matmul", int)
    assert before.replaced() == ["torch.matmul"]


def test_what_is_added_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every import of a part of torch adds something."""
    before = KnownFunctions()
    monkeypatch.setattr(torch, "an_addition", len, raising=False)
    assert before.replaced() == []


def test_an_operator_that_follows_another_is_told() -> None:
    """A new operator is noticed even if another went and their number is the same."""
    new_library: Any = torch.library.Library  # untyped
    first = new_library("tfs_torch_surface", "DEF")
    first.define("scaled(Tensor x) -> Tensor")
    before = KnownFunctions()
    first._destroy()
    second = new_library("tfs_torch_surface", "DEF")
    try:
        second.define("shifted(Tensor x) -> Tensor")
        assert before.replaced() == ["operators of torch (tfs_torch_surface::shifted)"]
    finally:
        second._destroy()


def test_a_look_in_a_copy_tells_what_it_found_and_when_it_failed() -> None:
    """The process itself stays as it is, and a copy that dies proves nothing."""
    looked: list[str] = []

    def look() -> list[str]:
        looked.append("here")
        return ["torch.matmul", "json.loads"]

    assert in_a_copy(look) == ["torch.matmul", "json.loads"]
    assert in_a_copy(list) == []
    assert not looked
    assert in_a_copy(lambda: os._exit(1)) == ["what cannot be compared"]


def test_a_copy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model registers to run in forks may never return; its load still does."""
    monkeypatch.setattr(side_effects, "_PATIENCE_S", 0.05)

    def hang() -> list[str]:
        threading.Event().wait()
        return []

    assert in_a_copy(hang) == ["what cannot be compared"]
