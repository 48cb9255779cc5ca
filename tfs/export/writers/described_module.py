"""A module as those who write it into a version get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from tfs.export.packaging.packaging import Packaging
from tfs.export.signatures.signature import Derived, Signature
from tfs.runtime.guest.platforms.module_call import classes_in


@dataclass(frozen=True, slots=True)
class DescribedModule:
    """A module, what its author says of it, and what calling it has shown. Immutable.

    Attributes:
        module: The module, in evaluation mode.
        options: The author's options, by signature key.
        derived: The signatures found, by key.
        packaging: The author's decisions about modules and files.

    """

    module: nn.Module
    options: Mapping[str, Signature]
    derived: Mapping[str, Derived]
    packaging: Packaging

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
