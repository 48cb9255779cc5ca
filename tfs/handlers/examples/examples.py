"""Classify, Regress and MultiInference: tf.Examples in, classes or values out.

All three turn the Examples into the inputs of a signature and run it; MultiInference
runs several signatures of one version over the same Examples. Requests that are not
small are decoded off the serving loop. This takes two steps, because only the signature
says which tensors the Examples become: the request is read, the version is found on the
loop, and then the tensors are made. (TensorFlow Serving:
servables/tensorflow/{classifier,regressor,multi_inference}.cc.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from tfs.codec.example import QUICK_EXAMPLE_BYTES
from tfs.core.call import Call
from tfs.core.errors import ServingError
from tfs.core.servable import Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.tracing import begin_trace
from tfs.handlers.decode_pool import (
    DecodePool,
    NeedsRoomError,
    Reserve,
    reserve_unasked,
)
from tfs.handlers.examples.example_rpc import (
    ExampleQuestion,
    ExampleRpc,
    Write,
    find_tasks,
)
from tfs.handlers.examples.example_run import ExampleRun
from tfs.handlers.limits.admission import Admission
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.limits.request_stats import RequestStats
from tfs.handlers.model_lookup import ModelLookup, NotResident

T = TypeVar("T")


class ExampleHandler:
    """Answers one of the three RPCs. Confined to the serving loop.

    Args:
        lookup: Finds the version.
        rpc: The RPC: Classify, Regress or MultiInference.
        gate: Limits and counts; by default nothing is limited.
        decode_pool: Where slow messages are decoded, and long answers written; by default
            on the loop.
        check_method: Whether a signature's method must be the one asked for.

    """

    def __init__(
        self,
        lookup: ModelLookup,
        rpc: ExampleRpc,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        check_method: bool = False,
    ) -> None:
        self._lookup = lookup
        self._rpc = rpc
        self._gate = gate or RequestGate()
        self._decode_pool = decode_pool or DecodePool()
        self._check_method = check_method

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        gate, rpc = self._gate, self._rpc
        begin_trace(call, rpc.name)
        if not gate.enter(call, rpc.name):
            return
        begun_s = gate.now()
        self._decode(
            call,
            lambda _: rpc.read(call.message),
            functools.partial(self._find, call, begun_s, rpc.write),
            functools.partial(gate.refuse, method=rpc.name, begun_s=begun_s),
            gate.leave,
        )

    def start(self, call: Call, question: ExampleQuestion, write: Write) -> None:
        """Starts a request that was decoded elsewhere.

        Args:
            call: Finished when the outcome is known.
            question: What is asked.
            write: Makes the reply.

        """
        begin_trace(call, self._rpc.name)
        if self._gate.enter(call, self._rpc.name):
            self._find(call, self._gate.now(), write, question)

    def _decode(
        self,
        call: Call,
        decode: Callable[[Reserve], T],
        done: Callable[[T], None],
        refuse: Callable[[Call, Exception], None],
        put_off: Callable[[], object],
    ) -> None:
        """Decodes on the loop or a thread, then calls ``done`` or ``refuse``.

        If there is no room for the request, it calls ``put_off`` instead.
        """

        def decoded(outcome: T | ServingError) -> None:
            if isinstance(outcome, ServingError):
                refuse(call, outcome)
            else:
                done(outcome)

        try:
            if len(call.message) > QUICK_EXAMPLE_BYTES:
                self._decode_pool.run(call, decode, decoded, put_off)
                return
            try:
                outcome = decode(reserve_unasked)
            except NeedsRoomError:
                self._decode_pool.run(call, decode, decoded, put_off)
                return
        except Exception as error:
            refuse(call, error)
            return
        done(outcome)

    def _find(
        self, call: Call, begun_s: float, write: Write, question: ExampleQuestion
    ) -> None:
        """Pins the version and finds the signatures."""
        gate, rpc = self._gate, self._rpc
        handle: ServableHandle[Servable] | None = None
        stats: RequestStats | None = None
        try:
            spec = question.model_spec
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, None, call
            )
            model = gate.model(handle.id.name)
            tasks = find_tasks(
                handle.servable.signatures,
                question.tasks,
                rpc.missing,
                check_method=self._check_method,
            )
            stats = model.stats_of(rpc.name, handle.id.version, question.key)
            stats.begin()
            model.enter()
        except NotResident as absent:
            absent.then(
                call,
                lambda: self._find(call, begun_s, write, question),
                lambda error: gate.refuse(call, error, rpc.name, begun_s),
            )
            return
        except Exception as error:
            if handle is not None:
                handle.release()
            gate.refuse(call, error, rpc.name, begun_s, stats)
            return
        run = ExampleRun(
            write,
            call,
            question,
            Admission(handle, gate, model, stats, rpc.name, question.key, model.logs),
            tasks,
            begun_s,
            self._decode_pool,
        )
        self._decode(call, run.make_tasks, run.submit, run.refuse, run.put_off)
