"""tfs.cli.told_warnings."""

from __future__ import annotations

import logging

import pytest

from tfs.cli.told_warnings import sentence, told_warnings


@pytest.mark.parametrize(
    ("logged", "told"),
    [
        (
            "event=lazy_parameters module=Net parameters=a,b were never computed with",
            "lazy parameters: module Net parameters a,b were never computed with",
        ),
        (
            "event=defaults_unlike_servers no server does: say dtype= and device=cpu",
            "defaults unlike servers: no server does: say dtype= and device=cpu",
        ),
        ("event=all_is_said", "all is said"),
        ("a sentence with a=b", "a sentence with a=b"),
    ],
    ids=["fields", "text", "event", "none"],
)
def test_a_line_of_the_log_is_told_as_a_sentence(logged: str, told: str) -> None:
    """Nobody who packages a model has to know what our logs look like."""
    assert sentence(logged) == told


def test_only_warnings_are_told_and_only_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the command did well shows in its result."""
    log = logging.getLogger("tfs.export.save")
    with told_warnings("tfs package"):
        log.info("event=version_exported path=/m/1")
        log.warning("event=dynamic_sizes_untested the model took no other size")
    log.warning("event=later")
    assert capsys.readouterr().err == (
        "tfs package: warning: dynamic sizes untested: the model took no other size\n"
    )
