"""Files that people write, with something wrong: refused in words, or read."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proto.samples import EXTENDED_CONFIG
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.server.config.server_config import config_text, read_config_text
from tfs.server.placing.batcher import read_batching_parameters

TENSORFLOWS: Final = """
# one model
model_config_list: {
  config: {
    name: 'half_plus_two', base_path: "/models/half_plus_two",
    model_platform: "tensorflow"
    model_version_policy: { latest: { num_versions: 2 } }
    version_labels { key: 'canary' value: 43 }
    logging_config {
      log_collector_config { type: "file" filename_prefix: "/tmp/log" }
      sampling_config { sampling_rate: 0.01 }
    }
  }
  config { name: "other" base_path: "/models/other" model_version_policy { all {} } }
}
"""
BATCHING: Final = """
max_batch_size { value: 128 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
allowed_batch_sizes: 32
allowed_batch_sizes: [64, 128]
pad_variable_length_inputs: true
policy {
  padding: CHEAPEST weight: 2.5 max_in_flight_batches: 3
  deadline_window { margin: 1.1 }
  length_buckets: 16 length_buckets: 32
  low_priority {
    max_enqueued_rows: 10 batch_timeout_micros: 100 mixing: MERGE ageing_micros: 6000
  }
}
"""
ODD: Final = (
    *("{", "}", "<", "[", ":", ",", "#", "'", '"', "\n", "\0", "\ufeff", "ä", "-"),
    *("0", "-1", "77", "1e400", "nan", "inf", "0x10", "07", "1.5", "true", '""'),
    *("2147483648", "9223372036854775808", "99999999999999999999", "-9999999999"),
    *('"\\000"', '"\\377"', '"\\ud800"', "[a.b]", "custom_model_config {}", "3: 4"),
)


def damaged(text: str, seed: int) -> str:
    """Replaces, adds, drops, doubles or exchanges some words."""
    rng = random.Random(seed)
    words = re.findall(r"[\w.-]+:?|\s+|\"[^\"]*\"|'[^']*'|.", text)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        index = rng.randrange(len(words))
        stop = index + rng.randrange(1, 30)
        match rng.randrange(6):
            case 0:
                words[index] = rng.choice(ODD)
            case 1:
                names = [i for i, word in enumerate(words[:-2]) if word[-1] == ":"]
                words[rng.choice(names or [0]) + 2] = rng.choice(ODD)
            case 2:
                words[index:index] = [" ", rng.choice(ODD), " "]
            case 3:
                del words[index:stop]
            case 4:
                words[index:index] = words[index:stop]
            case _:
                other = rng.randrange(len(words))
                words[index], words[other] = words[other], words[index]
        words = words or [" "]
    return "".join(words)


def reread(text: str) -> None:
    """Reads a config; one that is taken comes back from its text form."""
    config = read_config_text(text, "test")
    again = read_config_text(config_text(config.message), "test")
    assert again.models == config.models


def check(read: Callable[[str], object], text: str) -> None:
    """Reads it; what is wrong must be said as every file's faults are."""
    with contextlib.suppress(InvalidArgument, Unimplemented):
        read(text)


@given(st.sampled_from((EXTENDED_CONFIG, TENSORFLOWS)), st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_a_damaged_config_is_read_or_refused(text: str, seed: int) -> None:
    """Whatever an editor made of it: no error is anything but a refusal."""
    check(reread, damaged(text, seed))


@given(st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_damaged_batching_parameters_are_read_or_refused(seed: int) -> None:
    """The same of the other file that operators write."""
    check(lambda text: read_batching_parameters(text, "test"), damaged(BATCHING, seed))
