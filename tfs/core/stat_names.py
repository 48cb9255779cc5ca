"""The names of the server's counters and histograms, and the labels they carry.

One list, so that an exporter, a dashboard and a test spell them alike. A name says its
unit; a counter's name is what is counted. Stats of a model carry ``model`` and are
dropped when the model leaves the configuration. docs/metrics.md and the help of metrics
print the texts below them (:func:`stat_meanings`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tfs.core.stats import exponential_bounds

REQUESTS: Final = "requests"
"""Counter: requests that ended. Labels: model, version, signature, method, status.

All but method and status are empty for a request that named none that is served;
``status`` is the canonical code's name as the caller saw it. A version's go with it.
"""

REQUEST_LATENCY_S: Final = "request_latency_s"
"""Histogram: from the handler's start to the reply.

Labels: model, version, signature, method.
"""

REQUEST_PHASE_S: Final = "request_phase_s"
"""Histogram: where the time of requests that were answered went. Labels: model, phase
(receive, from the headers until the handler began; queue, until a model began; compute;
send, until the connection had the answer)."""

REQUESTS_WAITING: Final = "requests_waiting"
"""Gauge: requests that wait in batch queues or to be decoded, of all models."""

REQUEST_EXAMPLES: Final = "request_examples"
"""Counter: tf.Examples in Classify, Regress, MultiInference. Label: model."""

REQUESTS_REFUSED: Final = "requests_refused"
"""Counter: turned away for want of room. Label: limit (server, model, decode,
fill)."""

REQUESTS_IN_FLIGHT: Final = "requests_in_flight"
"""Gauge: taken and still worked on, cancelled ones too. Label for a model's: model."""

SLOW_DECODES: Final = "slow_decodes"
"""Counter: requests decoded off the serving loop."""

SLOW_DECODES_SKIPPED: Final = "slow_decodes_skipped"
"""Counter: of those, the ones nobody waited for any more when their turn came."""

SLOW_DECODES_QUEUED: Final = "slow_decodes_queued"
"""Gauge: waiting for a decode thread or on one."""

SLOW_ANSWERS: Final = "slow_answers"
"""Counter: answers written off the serving loop."""

RPC_CONNECTIONS: Final = "rpc_connections"
"""Gauge, express: connections that are open. Label: state (handshake, open)."""

RPC_CONNECTION_EVENTS: Final = "rpc_connection_events"
"""Gauge, express: connections since the start. Label: event (accepted; refused, too
many; failed_handshake; fault, the peer broke a rule; flood, of those the nuisances;
failure, our own code raised; timeout, given up for being silent, calls too)."""

RPC_FAILED_ACCEPTS: Final = "rpc_failed_accepts"
"""Gauge: how often a client could not be taken, for want of a descriptor most likely. The
log says why; no client is accepted for a second then, and those that come wait."""

RPC_STREAMS: Final = "rpc_streams"
"""Gauge, express: calls whose streams are open."""

RPC_CALL_EVENTS: Final = "rpc_call_events"
"""Gauge, express: calls since the start. Label: event (answered; reset, by the client;
cut_off, ended without their handler; handler_failure, a handler raised; late_finish,
finished again or too late)."""

RPC_HEADS: Final = "rpc_heads"
"""Gauge, express: request heads. Label: how (decoded; cached, an equal one was)."""

RPC_SLOW_ROUNDS: Final = "rpc_slow_rounds"
"""Gauge, express: rounds of the serving loop that took longer than 0.1 s."""

RPC_RECEIVE_BYTES: Final = "rpc_receive_bytes"
"""Gauge, express: what clients may send and what they sent that is not done with."""

RPC_LATE_FINISHES: Final = "rpc_late_finishes"
"""Counter, grpcio: calls that were finished again, or after they had ended."""

LOG_RECORDS: Final = "request_log_records"
"""Counter: requests written to a request log."""

LOG_DROPPED: Final = "request_log_dropped"
"""Counter: sampled requests that were not written. Label: reason (queue, disk)."""

WARMUP_LATENCY_S: Final = "model_warmup_latency_s"
"""Histogram: replaying a version's warm-up records. Label: model."""

VALIDATIONS: Final = "validations"
"""Counter: versions compared with the one that served. Labels: model, outcome (passed,
refused)."""

INPUT_SKEW: Final = "input_skew"
"""Gauge: how far inputs of live requests are from those recorded with the version. Labels:
model, version, input, figure (drift, out_of_range, missing; shares, 0 to 1)."""

BATCHES: Final = "batches"
"""Gauge: batches computed. Labels of all batching stats: model, version, signature.

They are the version's own and go with it; its successor starts from nothing.
"""

BATCH_TASKS: Final = "batch_tasks"
"""Gauge: requests by how they left their queue. Label more: end (computed, failed,
refused, expired, cancelled, evicted)."""

BATCH_PADDING_ROWS: Final = "batch_padding_rows"
"""Gauge: rows computed for nobody, to reach an allowed or a cheaper size."""

BATCH_WAITING_ROWS: Final = "batch_waiting_rows"
"""Gauge: rows that wait now."""

BATCH_WAITING_TASKS: Final = "batch_waiting_tasks"
"""Gauge: requests that wait now."""

BYPASS_TASKS: Final = "batch_bypass_tasks"
"""Gauge: requests of a batched signature that no queue had: larger than a batch, or
unlike what can be joined."""

BYPASS_ROWS: Final = "batch_bypass_rows"
"""Gauge: their rows."""

BYPASS_CALLS: Final = "batch_bypass_calls"
"""Gauge: calls made for them; a large request takes several."""

BATCH_ROWS: Final = "batch_rows"
"""Histogram: rows of requests per batch."""

BATCH_FILL: Final = "batch_fill"
"""Histogram: rows of requests per batch over the most a batch holds."""

BATCH_WAIT_S: Final = "batch_wait_s"
"""Histogram: what the oldest request of each batch waited for its start."""

BATCH_EXECUTION_S: Final = "batch_execution_s"
"""Histogram: device time per batch."""

BATCH_DEPTH_TASKS: Final = "batch_depth_tasks"
"""Histogram: requests that waited when a batch ended."""

LATENCY_BOUNDS_S: Final = exponential_bounds(50e-6, 2.0, 20)
"""50 us, 100 us, ... 26 s."""

PHASE_BOUNDS_S: Final = exponential_bounds(50e-6, 3.0, 11)
"""50 us, 150 us, ... 3 s: with what is beyond, 12 buckets."""

WARMUP_BOUNDS_S: Final = exponential_bounds(1e-3, 2.0, 20)
"""1 ms, 2 ms, ... 524 s."""

ONLY_GROW: Final = frozenset(
    {
        REQUESTS,
        REQUEST_EXAMPLES,
        REQUESTS_REFUSED,
        SLOW_DECODES,
        SLOW_DECODES_SKIPPED,
        SLOW_ANSWERS,
        RPC_CONNECTION_EVENTS,
        RPC_FAILED_ACCEPTS,
        RPC_CALL_EVENTS,
        RPC_HEADS,
        RPC_SLOW_ROUNDS,
        RPC_LATE_FINISHES,
        LOG_RECORDS,
        LOG_DROPPED,
        VALIDATIONS,
        BATCHES,
        BATCH_TASKS,
        BATCH_PADDING_ROWS,
        BYPASS_TASKS,
        BYPASS_ROWS,
        BYPASS_CALLS,
    }
)
"""Counters, and the gauges that read a count somebody else keeps: what an exporter calls a
counter. The other gauges say how something is now."""

_TEXT: Final = re.compile(
    r"(?P<kind>Counter|Gauge|Histogram)(?:, (?P<where>\w+))?: (?P<meaning>.+)"
)


@dataclass(frozen=True, slots=True)
class StatMeaning:
    """What a stat counts. Immutable.

    Attributes:
        kind: Counter, Gauge or Histogram.
        where: The transport that has it; "" if the server has it anyway.
        text: What is counted, and the labels, in one line.

    """

    kind: str
    where: str
    text: str


@functools.cache
def stat_meanings() -> Mapping[str, StatMeaning]:
    """Returns the meaning of every stat; nothing where the source is not installed."""
    try:
        body = ast.parse(inspect.getsource(sys.modules[__name__])).body
    except OSError:
        return {}
    found = {}
    for definition, text in itertools.pairwise(body):
        match definition, text:
            case (
                ast.AnnAssign(value=ast.Constant(value=str(name))),
                ast.Expr(value=ast.Constant(value=str(told))),
            ):
                parts = _TEXT.fullmatch(" ".join(told.replace("``", "`").split()))
                if parts is not None:
                    found[name] = StatMeaning(
                        parts["kind"], parts["where"] or "", parts["meaning"]
                    )
    return MappingProxyType(found)
