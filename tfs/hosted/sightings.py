"""What a synchronizer last saw of models and jobs: values. It is no part of the wanted state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    """How a model fares on one server. Immutable.

    Attributes:
        generation: The generation of the model that the server was told and has said to
            serve; 0 if it is behind.
        primary: The version that answers; None if none does.
        versions: The versions that are available.
        coming: The versions that are on their way there.
        canary: The version on trial, once the trial runs.
        problem: What is wrong; empty if nothing is.

    """

    generation: int = 0
    primary: int | None = None
    versions: tuple[int, ...] = ()
    coming: tuple[int, ...] = ()
    canary: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelSighting:
    """How a model fares on every server that has it, by address. Immutable."""

    replicas: Mapping[str, ReplicaSighting] = field(default_factory=dict)

    @property
    def num_answering(self) -> int:
        """On how many servers it answers."""
        return sum(each.primary is not None for each in self.replicas.values())

    @property
    def problem(self) -> str:
        """What is wrong with it, and where; empty if nothing is."""
        return "; ".join(
            f"{address}: {each.problem}"
            for address, each in self.replicas.items()
            if each.problem
        )

    def to_row(self) -> str:
        """Returns a text that :meth:`from_row` reads."""
        return json.dumps({at: asdict(each) for at, each in self.replicas.items()})

    @classmethod
    def from_row(cls, text: str) -> ModelSighting:
        """Reads what :meth:`to_row` wrote."""
        return cls(
            {
                address: ReplicaSighting(
                    **{
                        **form,
                        "versions": tuple(form["versions"]),
                        "coming": tuple(form["coming"]),
                    }
                )
                for address, form in json.loads(text).items()
            }
        )


@dataclass(frozen=True, slots=True)
class JobSighting:
    """How a job fares. Immutable.

    Attributes:
        answering: The addresses of its replicas that answer.
        problem: What is wrong with the others; empty if nothing is.

    """

    answering: tuple[str, ...] = ()
    problem: str = ""

    def to_row(self) -> str:
        """Returns a text that :meth:`from_row` reads."""
        return json.dumps([self.answering, self.problem])

    @classmethod
    def from_row(cls, text: str) -> JobSighting:
        """Reads what :meth:`to_row` wrote."""
        answering, problem = json.loads(text)
        return cls(tuple(answering), problem)
