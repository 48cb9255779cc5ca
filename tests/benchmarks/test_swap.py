"""The swap area's own logic: what overlaps, which replies are right."""

from __future__ import annotations

import pytest

from tests.benchmarks import swap
from tests.benchmarks.open_loop import Exchange
from tfs.proto.tensorflow_serving.apis import predict_pb2

LOG = """\
2026-01-02 03:04:05,100 I tfs.server.core event=servable_start servable=digits/2 reason=''
2026-01-02 03:04:05,200 I tfs.server.core event=servable_loading servable=digits/2 x
2026-01-02 03:04:05,700 I tfs.server.core event=servable_available servable=digits/2 x
tfs: digits/2 is available
2026-01-02 03:04:05,710 I tfs.server.core event=servable_unloading servable=digits/1 x
2026-01-02 03:04:05,720 I tfs.server.core event=servable_available servable=digits/2 x
2026-01-02 03:04:05,800 I tfs.server.core event=servable_end servable=digits/1 x
2026-01-02 03:04:06,200 I tfs.server.core event=servable_loading servable=digits/3 x
"""


def test_loads_and_unloads_are_read_from_the_servers_log() -> None:
    """Times are exact to the millisecond; repeated and unfinished states count not."""
    intervals = swap.find_intervals(swap.read_state_changes(LOG))
    assert [(each.version, each.is_load) for each in intervals] == [
        (2, True),
        (1, False),
    ]
    lengths_ms = [round((each.end_s - each.start_s) * 1e3) for each in intervals]
    assert lengths_ms == [500, 90]


@pytest.mark.parametrize(
    ("sent_s", "done_s", "overlaps"),
    [
        (0.0, 0.9, False),
        (0.0, 1.0, True),
        (0.5, 2.5, True),
        (1.2, 1.3, True),
        (2.1, 2.2, False),
    ],
)
def test_a_request_overlaps_what_it_was_under_way_in(
    sent_s: float, done_s: float, overlaps: bool
) -> None:
    """One shared moment is enough."""
    one = Exchange(0, sent_s, sent_s, done_s, b"", None)
    interval = swap.Interval(1.0, 2.0, 2, is_load=True)
    during, rest = swap.split_by_overlap([one], [interval])
    assert (during, rest) == (([one], []) if overlaps else ([], [one]))


def make_reply(nets: swap.Nets, named: int, computed: int, image_index: int) -> bytes:
    """Returns the scores of version `computed`, signed by version `named`."""
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = named
    scores = nets.net(computed)(nets.images[image_index : image_index + 1])["scores"]
    response.outputs["scores"].float_val.extend(scores.detach().reshape(-1).tolist())
    return response.SerializeToString()


def test_a_reply_is_right_for_its_image_and_the_version_it_names() -> None:
    """Scores of the neighbouring version, or of another image, are wrong ones."""
    nets = swap.Nets()
    assert nets.is_right(3, make_reply(nets, 7, 7, 3))
    assert not nets.is_right(3, make_reply(nets, 7, 8, 3))
    assert not nets.is_right(3, make_reply(nets, 7, 7, 4))
