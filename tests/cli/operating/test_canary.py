"""tfs.cli.operating.canary."""

from __future__ import annotations

import argparse

import pytest

from tfs.cli.operating.canary import show_primary as show
from tfs.proto.tfs.v1 import admin_service_pb2 as pb


@pytest.mark.parametrize(
    ("primary", "dry_run", "is_chosen", "code", "words"),
    [
        (1, False, True, 0, "version 1 of digits is the primary"),
        (2, False, True, 1, "version 1 of digits does not answer yet; version 2 goes"),
        (None, False, True, 1, "does not answer yet; nothing does"),
        (2, True, True, 0, "version 1 of digits could be the primary"),
        (None, False, False, 0, "version 1 of digits is the primary"),
    ],
)
def test_a_version_is_the_primary_when_it_answers(
    primary: int | None,
    dry_run: bool,
    is_chosen: bool,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script must not take a rollback for done that waits for its version."""
    reply = pb.RollbackResponse(version=1)
    reply.outcome.model.name = "digits"
    if primary is not None:
        reply.outcome.model.primary = primary
    arguments = argparse.Namespace(model="digits", json=False, dry_run=dry_run)
    assert show(arguments, reply, 1, is_chosen=is_chosen) == code
    assert words in capsys.readouterr().out
