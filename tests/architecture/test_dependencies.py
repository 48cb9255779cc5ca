"""Every package that an install can bring is pinned, at a version we say we accept."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.tree import ROOT

# What torch's CUDA build brings; the pins are for the CPU build.
CUDA = re.compile(r"nvidia-|cuda-|triton$")


def read_pins() -> dict[str, str]:
    """Returns the version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def read_requirements() -> list[Requirement]:
    """Returns what pyproject.toml asks for: to build, to run, and every extra."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    texts = [*settings["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        texts += extra
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", read_requirements(), ids=str)
def test_every_requirement_has_a_pin_that_satisfies_it(
    requirement: Requirement,
) -> None:
    """A requirement without a pin, or with one it refuses, breaks a clean clone."""
    pins = read_pins()
    assert canonicalize_name(requirement.name) in pins
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_everything_that_comes_along_is_pinned() -> None:
    """Dependencies of dependencies change overnight just as well."""
    waiting = [requirement.name for requirement in read_requirements()]
    seen: set[str] = set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen or CUDA.match(name):
            continue
        seen.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        waiting += [
            need.name
            for need in map(Requirement, needs)
            if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
    assert sorted(seen - read_pins().keys()) == []
