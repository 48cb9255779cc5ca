"""Writes a module into a version directory, in each of the forms that there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from tfs.export.derived import Derived
from tfs.export.packaging.dependency_report import DependencyReport
from tfs.export.packaging.package import (
    RESOURCE,
    PackageRules,
    package_of,
    write_package,
)
from tfs.export.signature_options import SignatureOptions
from tfs.runtime.guest.platforms.nested_values import classes_in


@dataclass(frozen=True, slots=True)
class DescribedModule:
    """A module, its author's options, and the signatures found by calling it. Immutable.

    Attributes:
        module: The module, in evaluation mode.
        options: The author's options, by signature key.
        derived: The signatures found, by key.

    """

    module: nn.Module
    options: Mapping[str, SignatureOptions]
    derived: Mapping[str, Derived]

    @property
    def name(self) -> str:
        """The name of its class, for messages."""
        return type(self.module).__name__

    @property
    def entry(self) -> dict[str, object]:
        """The part of the manifest's entry that says how signatures are called.

        It says which methods answer if not ``forward``, how arguments that are
        containers are put together, and which results are made flat.
        """
        parts: dict[str, dict[str, object] | list[str]] = {
            "methods": {
                k: o.call for k, o in self.options.items() if o.call != "forward"
            },
            "arguments": {k: dict(d.forms) for k, d in self.derived.items() if d.forms},
            "flattened": [k for k, d in self.derived.items() if d.is_nested],
        }
        return {name: part for name, part in parts.items() if part}

    @property
    def argument_classes(self) -> list[str]:
        """The classes of arguments, ``nets:Box``, each once."""
        forms = [form for each in self.derived.values() for form in each.forms.values()]
        return list(dict.fromkeys(p for form in forms for p in classes_in(form)))


class PayloadWriter(Protocol):
    """Writes one form. Immutable."""

    @property
    def platform(self) -> str:
        """The platform that serves it."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the same kernels run, so that outputs must agree bit for bit."""
        ...

    def write(self, folder: str, module: DescribedModule) -> dict[str, object]:
        """Writes the payload of ``module`` and returns the manifest's entry.

        Raises:
            InvalidArgument: The module cannot be stored in this form; says why.

        """
        ...


@dataclass(frozen=True, slots=True)
class PackageWriter:
    """Code, weights and object in one torch.package archive."""

    rules: PackageRules = field(default_factory=PackageRules)
    report: Callable[[DependencyReport], object] | None = None

    platform = "torch_package"
    is_exact = True

    def write(self, folder: str, module: DescribedModule) -> dict[str, object]:
        found = write_package(
            module.module,
            os.path.join(folder, "model.pt"),
            self.rules,
            module.argument_classes,
        )
        if self.report is not None:
            self.report(found)
        return {
            "package": package_of(module.module, self.rules),
            "resource": RESOURCE,
            **module.entry,
        }
