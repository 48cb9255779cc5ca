"""The modules that a package contains or leaves to the server, and why: as a tree."""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class Action(enum.Enum):
    """What was done with a module that a model depends on."""

    INTERNED = "interned"
    EXTERN = "extern"
    MOCKED = "mocked"
    UNRESOLVED = "UNRESOLVED"


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One module. Immutable.

    Attributes:
        name: The module's name as it is imported.
        action: What was done with it.
        reason: Why.
        advice: What the author can do about it; only if it is unresolved.
        imports: The modules that it imports, in the order of its source; only if it is
            interned.

    """

    name: str
    action: Action
    reason: str
    advice: str = ""
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A value within the model that cannot be pickled. Immutable.

    Attributes:
        path: Its place, from ``model`` on.
        what: What it is, and why it cannot be pickled.
        advice: What the author can do about it.

    """

    path: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class DependencyReport:
    """All modules of one package. Immutable; ``str()`` is the tree.

    Attributes:
        modules: The report of each module, by name.
        roots: Modules that the pickled model refers to directly, then those that were
            included by hand.
        unsaved: Values of the model itself that cannot be packaged. If there are any,
            ``modules`` only has those of its parts' classes.

    """

    modules: Mapping[str, ModuleReport]
    roots: tuple[str, ...]
    unsaved: tuple[Unsaved, ...] = ()

    def with_action(self, action: Action) -> list[ModuleReport]:
        """Returns the modules of one kind, by name."""
        found = [m for m in self.modules.values() if m.action is action]
        return sorted(found, key=lambda module: module.name)

    @property
    def unresolved(self) -> list[ModuleReport]:
        """The modules to decide about before the package can be written."""
        return self.with_action(Action.UNRESOLVED)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do before the package can be written."""
        return not self.unsaved and not self.unresolved

    def summary(self) -> str:
        """Returns a line that says how much is left to do."""
        parts = []
        if self.unsaved:
            parts.append(f"{len(self.unsaved)} of its values cannot be saved")
        if self.unresolved:
            num = len(self.unresolved)
            verb = "needs" if num == 1 else "need"
            parts.append(f"{num} of the modules it uses {verb} a decision")
        return ", ".join(parts)

    def advice(self) -> str:
        """Returns paragraphs that say what must change, and where.

        There is one for each value that cannot be saved, then one for each group of
        unresolved modules that need the same decision, with the modules that import
        them.
        """
        importers: dict[str, list[str]] = {}
        for module in self.modules.values():
            for name in module.imports:
                importers.setdefault(name, []).append(module.name)
        lines = []
        for each in self.unsaved:
            lines += [f"{each.path} = {each.what}", f"    -> {each.advice}"]
        alike: dict[tuple[str, str], list[str]] = {}
        for module in self.unresolved:
            alike.setdefault((module.reason, module.advice), []).append(module.name)
        for (reason, advice), names in alike.items():
            by = {
                n for name in names for n in importers.get(name, ["the model itself"])
            }
            lines.append(f"{_some(names)} (imported by {_some(sorted(by))})")
            lines += [f"    {reason}", f"    -> {advice}"]
        return "\n".join(lines)

    def complaint(self) -> str:
        """Returns the tree in a readable length, some sixty lines at most.

        From a larger tree, it shows only what leads to something that is left to do.
        """
        tree = self.tree()
        if self.is_complete or tree.count("\n") < _MAX_LINES:
            return tree
        lines = self._to(self._leading({m.name for m in self.unresolved})).split("\n")
        rest = len(lines) - _MAX_LINES
        if rest > 0:
            lines[_MAX_LINES - 1 : -1] = [f"... {rest} lines more"]
        return "\n".join([*lines, "(only what leads to these; --explain shows all)"])

    def tree(self) -> str:
        """Returns the tree: every module once in full, torch's and Python's in a line.

        Ends with a line that counts each kind.
        """
        return self._to(self.modules.keys())

    __str__ = tree

    def _to(self, shown: Container[str]) -> str:
        lines = ["model"]
        for each in self.unsaved:
            lines.append(f"├─ {each.path}  CANNOT BE SAVED: {each.what}")
            lines.append(f"│    -> {each.advice}")
        self._grow(self.roots, "", set(), lines, shown)
        counts = [
            f"{len(self.with_action(action))} {action.value}"
            for action in Action
            if self.with_action(action)
        ]
        if self.unsaved:
            counts.append(f"{len(self.unsaved)} CANNOT BE SAVED")
        lines.append(f"({', '.join(counts) or 'nothing but the model'})")
        return "\n".join(lines)

    def _leading(self, targets: set[str]) -> set[str]:
        """Returns ``targets`` and the modules through which they are imported."""
        leading = set(targets)
        grown = True
        while grown:
            new = {
                module.name
                for module in self.modules.values()
                if module.name not in leading and leading.intersection(module.imports)
            }
            leading |= new
            grown = bool(new)
        return leading

    def _grow(
        self,
        names: Iterable[str],
        indent: str,
        seen: set[str],
        lines: list[str],
        wanted: Container[str],
    ) -> None:
        shown = [name for name in names if name in self.modules and name in wanted]
        plain = [name for name in shown if self._is_plain(name)]
        shown = [name for name in shown if name not in plain]
        entries = [*shown, *(["\0"] if plain else [])]
        for index, name in enumerate(entries):
            is_last = index == len(entries) - 1
            branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            if name == "\0":
                lines.append(
                    f"{indent}{branch}{', '.join(sorted(plain))}  extern: with Python "
                    "and torch on every server"
                )
                continue
            module = self.modules[name]
            again = name in seen and bool(module.imports)
            detail = "shown above" if again else module.reason
            lines.append(f"{indent}{branch}{name}  {module.action.value}: {detail}")
            if module.advice:
                lines.append(f"{indent}{below}  -> {module.advice}")
            if name not in seen:
                seen.add(name)
                self._grow(module.imports, indent + below, seen, lines, wanted)

    def _is_plain(self, name: str) -> bool:
        module = self.modules[name]
        return module.action is Action.EXTERN and module.reason == ALWAYS_THERE


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


_MAX_NAMES: Final = 4
_MAX_LINES: Final = 60

ALWAYS_THERE = "comes with Python or torch"
"""The reason of modules that no author has to think about."""
