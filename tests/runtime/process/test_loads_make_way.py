"""What a worker that loads is shown of the server's requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost
from tests.runtime.zoo import Scale
from tfs.core.loop.pacing import Traffic
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.process_options import ProcessOptions

ASKS_FOR_THE_WAY = """\
import time
from tfs.core.loop import pacing

until_s = time.monotonic() + {patience_s}
while not (is_shown := pacing._of_process._look() is pacing.Traffic.NOW):
    if time.monotonic() >= until_s:
        break
    time.sleep(0.001)
pacing.yield_to_requests()

class Tells:
    def predict(self, x):
        return {{"y": x * 0 + float(is_shown)}}
"""


def test_a_worker_that_goes_while_it_rehearses_is_shown_nothing_more(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its memory is gone: writing to it would fail in every round."""
    model = host.pool().load(package(tmp_path, Scale()))
    model.rehearse("slow", {"x": floats((600, 0))}, 0.01)
    model.unload()
    host.on_loop(lambda: None)
    num_failures: list[int] = []
    host.on_loop(lambda: num_failures.append(host.loop.num_failures))
    assert num_failures == [0]


@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_load_in_the_background_sees_that_others_are_answered(
    host: ProcessHost, tmp_path: Path, is_urgent: bool
) -> None:
    """A background load pauses for requests, for a while; an urgent one does not."""
    options = ProcessOptions(is_urgent=lambda: is_urgent, traffic=lambda: Traffic.NOW)
    code = ASKS_FOR_THE_WAY.format(patience_s=0.0 if is_urgent else 30.0)
    (tmp_path / "servable.py").write_text(code)
    source = ModelSource(
        ServableId("tells", 1),
        str(tmp_path),
        "python",
        {},
        {"serving_default": signature()},
    )
    model = host.pool(options).load(source)
    outputs = ask(model, {"x": floats((1, 2))}).outputs()
    assert values(outputs["y"]) == [[float(not is_urgent)] * 2]
