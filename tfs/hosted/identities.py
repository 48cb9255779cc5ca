"""Who may do what with a fleet, and where: names of client certificates, roles, quotas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import InvalidArgument, PermissionDenied, ResourceExhausted
from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_state import Edit


@dataclass(frozen=True, slots=True)
class Identity:
    """What a name stands for. Immutable."""

    # "viewer" reads; "editor" changes as well, and owns the models that it adds.
    role: str = ""
    # "prod", or "temp": it changes models of Temp and nothing else.
    instance: str = "prod"
    max_models: int = 0  # that it may own; 0 for any number
    max_memory_bytes: int = 0  # with all replicas that they may have; 0 for any amount

    def __post_init__(self) -> None:
        if self.role not in ("viewer", "editor"):
            raise InvalidArgument(f"role is viewer or editor: {self.role!r}")
        if self.instance not in ("prod", "temp"):
            raise InvalidArgument(f"instance is prod or temp: {self.instance!r}")
        for each in ("max_models", "max_memory_bytes"):
            value = getattr(self, each)
            if type(value) is not int or value < 0:
                raise InvalidArgument(f"{each} is a number, 0 or more: {value!r}")


@dataclass(frozen=True, slots=True)
class Identities:
    """The names that a fleet knows. Immutable; empty: it tells nobody apart."""

    by_name: Mapping[str, Identity] = field(default_factory=dict)

    def owner(self, peer: Peer) -> str:
        """Returns the name that a caller goes by; empty if nobody is told apart.

        Raises PermissionDenied if it is not known.
        """
        if not self.by_name:
            return ""
        known = [name for name in peer.identity if name in self.by_name]
        if not known:
            said = ", ".join(peer.identity) or "who shows no name"
            raise PermissionDenied(f"{said} is nobody whom this fleet knows")
        return known[0]

    def is_temp(self, owner: str) -> bool:
        """Whether a name belongs to Temp; who has none belongs to Prod."""
        return owner != "" and self.by_name[owner].instance == "temp"

    def guarded(self, edit: Edit, owner: str) -> Edit:
        """Returns an edit by ``owner`` that is refused where it may not do that.

        PermissionDenied: a viewer changes something, or a name of Temp what is not Temp's.
        ResourceExhausted: the quota of whoever owns the model is exceeded.
        """
        is_temp = self.is_temp(owner)

        def apply(fleet: Fleet) -> Fleet:
            if owner and self.by_name[owner].role != "editor":
                raise PermissionDenied(f"{owner} is a viewer, who changes nothing here")
            known = fleet.models.get(edit.model)
            if is_temp and (edit.job or (known is not None and not known.is_temp)):
                raise PermissionDenied(
                    f"{owner} belongs to Temp, and {edit.model or edit.job} does not"
                )
            after = edit.apply(fleet)
            if (found := after.models.get(edit.model)) is not None:
                self._check(fleet, after, found.owner)
            return after

        why = f"{edit.why} by {owner}" if owner else edit.why
        return replace(edit, why=why, apply=apply)

    def _check(self, before: Fleet, after: Fleet, owner: str) -> None:
        quota = self.by_name.get(owner)
        if quota is None:
            return
        then, now = _taken(before, owner), _taken(after, owner)
        if quota.max_models and now[0] > max(quota.max_models, then[0]):
            raise ResourceExhausted(
                f"{owner} has {then[0]} models, and its quota is {quota.max_models}"
            )
        if quota.max_memory_bytes and now[1] > max(quota.max_memory_bytes, then[1]):
            mebibytes = 1 << 20
            raise ResourceExhausted(
                f"{owner} would have models of {now[1] / mebibytes:.1f} MiB with all "
                f"their replicas, now {then[1] / mebibytes:.1f}, and its quota is "
                f"{quota.max_memory_bytes / mebibytes:.1f} MiB"
            )


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Where commands are taken, over gRPC and HTTP, and from whom. Immutable.

    Callers over HTTP may show the key, if it is not empty, in the place of a certificate.
    """

    listeners: Sequence[ListenerOptions] = ()
    http_listeners: Sequence[ListenerOptions] = ()
    http_key: str = field(default="", repr=False)
    identities: Identities = field(default_factory=Identities)


def _taken(fleet: Fleet, owner: str) -> tuple[int, int]:
    """Returns how many models an owner has, and what they may take."""
    own = [each for each in fleet.models.values() if each.owner == owner]
    return len(own), sum(each.memory_bytes * each.max_replicas for each in own)


def read_identities(file: str) -> Identities:
    """Reads {"NAME": {"role": "editor", "max_models": 10, "max_memory_bytes": 1000}}.

    Raises InvalidArgument if it is something else, or names nobody.
    """
    where = f"--identities={file}"
    try:
        form = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{where}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{where}: no JSON: {error}") from None
    if not isinstance(form, dict) or not form:
        raise InvalidArgument(f"{where} names nobody")
    return Identities({name: _read(f"{where}: {name}", form[name]) for name in form})


def _read(where: str, form: Any) -> Identity:
    try:
        return Identity(**form)
    except TypeError:
        known = ", ".join(each.name for each in fields(Identity))
        raise InvalidArgument(f"{where} has {form!r}; it takes {known}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}") from None
