"""A directory of models: each sub-directory is one, added and removed as they come.

This only finds the models; the file-system source then looks after their versions.
A sub-directory counts as a model once it holds a directory with a number for its
name: ``lost+found`` or a half-made copy does not become a model without versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sources.servable_to_monitor import ServableToMonitor
from sources.storage.file_system import FileSystem, why
from sources.version_policy import (
    WHAT_A_VERSION_IS,
    list_lookalikes,
    list_names,
    name_versions,
)
from tfs.core.system.log_lines import fits_a_line

log = logging.getLogger(__name__)

_MAX_PROBLEMS: Final = 5  # reported at a time

MakeServable = Callable[[str, str], ServableToMonitor]
"""Makes the servable, with policy and platform, of a model's name and base path."""


@dataclass(frozen=True, slots=True)
class RepositoryLook:
    """The result of a look at a directory of models. Immutable.

    Attributes:
        models: The models there; None if it could not be listed.
        problem: Why it could not be listed, or which of its directories cannot be
            models.
        is_blind: Whether something could not be read. No event tells when it can be.
        folders: The directories in it, which become models when they hold a version.

    """

    models: tuple[ServableToMonitor, ...] | None
    problem: str = ""
    is_blind: bool = False
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class ModelRepository:
    """What a repository held when it was last looked at. Confined to its source.

    Attributes:
        path: The directory of models, or a URL.
        make: Makes the servable of a name and base path.
        unload_when_empty: Whether a repository that shows no model any more
            removes them all; otherwise they stay, as after a lost mount.
        models: The models found last; None before the first successful look.
        problem: Why the last look failed or was not accepted, or what it left out;
            empty if there is nothing to report.

    """

    path: str
    make: MakeServable = ServableToMonitor
    unload_when_empty: bool = False
    models: tuple[ServableToMonitor, ...] | None = None
    problem: str = ""
    _kept: frozenset[str] = field(default_factory=frozenset)

    def look(self, file_system: FileSystem) -> bool:
        """Lists the repository; returns whether ``models`` changed. Never raises."""
        return self.take(self.examine(file_system))

    def examine(self, file_system: FileSystem) -> RepositoryLook:
        """Lists the repository, changing nothing; any thread. Never raises.

        A model stays as long as its directory exists, even while that shows no version
        or cannot be read. The source decides what follows from that.
        """
        try:
            return self._examine(file_system)
        except OSError as error:
            reason = why(error)
        # A fault of the file system must not stop the source.
        except Exception as error:
            log.exception("event=repository_look_failed path=%s", self.path)
            reason = str(error) or type(error).__name__
        problem = f"cannot list model repository {self.path}: {reason}"
        return RepositoryLook(None, problem, is_blind=True)

    def _examine(self, file_system: FileSystem) -> RepositoryLook:
        root = self.path.rstrip("/") or "/"
        names = file_system.list_directories(self.path)
        found, problems = list[ServableToMonitor](), list[str]()
        is_blind = False
        for name in sorted(names):
            if name.startswith("."):
                continue
            if not _is_text(name):
                problems.append(f"{name!a} is no UTF-8 and so no name of a model")
                continue
            if not fits_a_line(name):
                problems.append(f"{name!a} is no name of a model")
                continue
            base_path = f"{root.rstrip('/')}/{name}"
            try:
                inside = [] if name in self._kept else _names_in(file_system, base_path)
            except OSError as error:
                problems.append(f"cannot read {name}: {why(error)}")
                is_blind = True
                continue
            lookalikes = list_lookalikes(inside)
            is_model = name in self._kept or bool(name_versions(inside))
            if lookalikes and not is_model:
                problems.append(
                    f"{list_names(lookalikes)} in {name} is no version: "
                    f"{WHAT_A_VERSION_IS}"
                )
            if is_model:
                found.append(self.make(name, base_path))
        problem = ""
        if problems:
            listed = "; ".join(problems[:_MAX_PROBLEMS])
            more = len(problems) - _MAX_PROBLEMS
            listed += f" and {more} more" if more > 0 else ""
            problem = f"model repository {self.path}: {listed}; the others are served"
        elif not found:
            problem = f"model repository {self.path} holds no model: "
            problem += (
                f"it is the base path of one model; name {_parent(root)}, in which it "
                "lies, or serve it with --model_base_path"
                if name_versions(names)
                else "a model is a directory that holds numbered ones, such as "
                f"{root.rstrip('/')}/digits/1"
            )
        folders = tuple(f"{root.rstrip('/')}/{name}" for name in names)
        return RepositoryLook(tuple(found), problem, is_blind, folders)

    def note_late(self, late_s: float) -> None:
        """Notes that it does not answer, unless there is a problem already."""
        if not self.problem:
            self.problem = (
                f"model repository {self.path} has not answered for {late_s:g} s; it is "
                "looked at again as soon as it does"
            )
            log.warning("event=source_problem problem=%s", self.problem)

    def take(self, look: RepositoryLook) -> bool:
        """Accepts the result of a look; returns whether ``models`` changed."""
        before, changed = self.problem, self._take(look)
        if self.problem and self.problem != before:
            log.warning("event=source_problem problem=%s", self.problem)
        return changed

    def _take(self, look: RepositoryLook) -> bool:
        models = look.models
        if models is None:
            self.problem = look.problem
            return False
        if not models and self.models and not self.unload_when_empty:
            self.problem = (
                f"model repository {self.path} shows no model any more; those loaded "
                "stay (unload_when_empty is off)"
            )
            return False
        self.problem = look.problem
        self._kept = frozenset(model.name for model in models)
        if models == self.models:
            return False
        self.models = models
        return True


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_text(name: str) -> bool:
    # Names that are not UTF-8 contain lone surrogates.
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names_in(file_system: FileSystem, base_path: str) -> Sequence[str]:
    try:
        return file_system.list_directories(base_path)
    except (FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
        return ()
