"""Who operates a server in tests: calls AdminService without a transport."""

from __future__ import annotations

from typing import Any

from managers.loading.load_admission import ResourceTracker
from tests.server.environment import Environment, config, model
from tfs.core.errors import (
    ServingError,
)
from tfs.core.stats import Stats
from tfs.handlers.admin import Asked
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.core_admin import CoreAdmin
from tfs.server.admin.server_reports import ProcessFacts, ServerReports


class Operator:
    """Calls AdminService and waits for the answer."""

    def __init__(self, env: Environment, memory: ResourceTracker | None = None) -> None:
        self.env = env
        self.stats = Stats()
        facts = ProcessFacts(
            1.0, "0.1", "2.0", tuple, lambda: False, self.stats, memory
        )
        reports = ServerReports(env.core, env.clock, facts)
        self.admin = CoreAdmin(env.core, env.clock, reports)

    def ask(self, request: Any, settles: bool = True) -> Any:
        """Returns the reply; raises the error."""
        answers: list[Any] = []
        asked = Asked(request, "test", None, answers.append)
        self.admin(asked)
        if settles:
            self.env.settle()
        (answer,) = answers
        if isinstance(answer, ServingError):
            raise answer
        return answer

    def model(self) -> pb.ModelReport:
        """Returns the report of a."""
        request = pb.ListModelsRequest(models=["a"])
        (report,) = self.ask(request).models
        assert isinstance(report, pb.ModelReport)
        return report

    def show(self) -> pb.GetConfigResponse:
        """Returns the running config."""
        reply = self.ask(pb.GetConfigRequest())
        assert isinstance(reply, pb.GetConfigResponse)
        return reply


def operating(*versions: int, extra: str = "", state_dir: str = "") -> Operator:
    """Returns an operator of a server of model a."""
    env = Environment(state_dir)
    for version in versions:
        env.add_version("a", version)
    env.start(config(model("a", "", extra)))
    return Operator(env)
