"""Lets a module read its package's resources before it is packaged."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping

NAME = "torch_package_importer"
"""The module that packaged code imports to reach its archive; it exists only there."""


@contextlib.contextmanager
def readable(resources: Mapping[str, str | bytes]) -> Iterator[None]:
    """Makes ``import torch_package_importer`` work for the block.

    Its ``load_text`` and ``load_binary`` return what the archive will contain. Code
    that comes from another package keeps that package's own. Not thread-safe.

    Args:
        resources: Text or bytes by path; without a folder they are in package "model".

    """
    if NAME in sys.modules or not resources:
        yield
        return
    contents = {
        (name if "/" in name else f"model/{name}"): (
            content.encode() if isinstance(content, str) else content
        )
        for name, content in resources.items()
    }

    def load_binary(package: str, resource: str) -> bytes:
        path = f"{package.replace('.', '/')}/{resource}"
        try:
            return contents[path]
        except KeyError:
            raise FileNotFoundError(
                f"no {path!r} among the resources: {', '.join(contents)}"
            ) from None

    def load_text(
        package: str, resource: str, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        return load_binary(package, resource).decode(encoding, errors)

    module = types.ModuleType(NAME)
    vars(module).update(load_binary=load_binary, load_text=load_text)
    sys.modules[NAME] = module
    try:
        yield
    finally:
        del sys.modules[NAME]
