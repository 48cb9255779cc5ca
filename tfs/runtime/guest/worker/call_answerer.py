"""Answers one call: from a slot's request words to its reply words."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping

import torch

from tfs.core.errors import InvalidItems, forget_frames, serving_error
from tfs.runtime.guest.devices import leave_if_device_is_lost
from tfs.runtime.guest.faults import is_out_of_memory
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.slab import (
    REPLY_WORDS,
    REQUEST_WORDS,
    WORD_BYTES,
    Slab,
    Slot,
)
from tfs.runtime.guest.worker.slab_tensors import InputReader, OutputWriter
from tfs.runtime.guest.worker.worker_model import LoadedModel, WorkerModel

_MAX_TEXT_BYTES = 4096
_HEADER_BYTES = REQUEST_WORDS * WORD_BYTES
_read_header = struct.Struct(f"={REQUEST_WORDS}q").unpack_from


class CallAnswerer:
    """Runs the calls in a slab. Confined to one thread, in inference mode.

    Args:
        slab: The slab that holds the calls.
        model: Has the model, once another thread has loaded it.
        on_out_of_memory: Called when a call ran out of memory, before it is answered;
            may end the process.

    """

    def __init__(
        self,
        slab: Slab,
        model: WorkerModel,
        on_out_of_memory: Callable[[], None],
    ) -> None:
        self._slab = slab
        self._model = model
        self._depth = FORKS.depth
        self._on_out_of_memory = on_out_of_memory
        self._inputs = InputReader(slab.map)
        self._outputs = OutputWriter(slab)
        self._num_threads = 0  # not known yet: each thread has its own number

    def answer(self, slot: Slot, overflow: mmap.mmap | None) -> int | None:
        """Runs the slot's call and writes its reply. Any failure becomes the reply.

        Args:
            slot: The slot of the call.
            overflow: Its inputs, if the slot is too small for them.

        Returns:
            A memfd with the outputs if they do not fit the slot; the caller sends and
            closes it.

        """
        begun_ns = time.perf_counter_ns()
        loaded: LoadedModel | None = None
        name = ""
        try:
            loaded, name, inputs, num_rows = self.read(slot, overflow)
            try:
                result = loaded.guest.run(name, inputs, num_rows)
            finally:
                FORKS.end_copy(self._depth)
            return self.reply(slot, result, begun_ns)
        except BaseException as error:  # reading what a model returned may raise it
            self.fail(slot, error, loaded, name, begun_ns)
        return None

    def read(
        self, slot: Slot, overflow: mmap.mmap | None
    ) -> tuple[LoadedModel, str, dict[str, Value], int]:
        """Returns whose call it is, of which signature, with which inputs and rows.

        The thread gets as many threads of torch as the model wants.

        Raises:
            ServingError: There is no model here yet.

        """
        slab = self._slab
        signature_index, num_rows, _, num_words = _read_header(
            slab.map, slot.request_byte
        )
        start = slot.request_byte + _HEADER_BYTES
        descriptor = slab.map[start : start + num_words * WORD_BYTES]
        loaded = self._model.loaded()
        if loaded.source.intra_op_threads != self._num_threads:
            self._num_threads = loaded.source.intra_op_threads
            torch.set_num_threads(self._num_threads)
        names = loaded.input_names[signature_index]
        inputs = self._inputs.read(names, descriptor, overflow)
        return loaded, loaded.signature_names[signature_index], inputs, num_rows

    def reply(
        self, slot: Slot, result: Mapping[str, Output], begun_ns: int
    ) -> int | None:
        """Writes outputs; returns a memfd with those that do not fit the slot."""
        slab = self._slab
        words, overflow_fd = self._outputs.write(slot, result)
        try:
            overflow_out = 0
            if overflow_fd is not None:
                overflow_out = os.fstat(overflow_fd).st_size
            ns = time.perf_counter_ns() - begun_ns
            slab.write_words(slot.reply_word, (0, ns, overflow_out, len(words), *words))
        except BaseException:
            if overflow_fd is not None:
                with contextlib.suppress(OSError):
                    os.close(overflow_fd)
            raise
        return overflow_fd

    def fail(
        self,
        slot: Slot,
        error: BaseException,
        loaded: LoadedModel | None,
        name: str,
        begun_ns: int,
    ) -> None:
        """Writes why a call failed, of signature ``name`` if it is known whose it was."""
        slab = self._slab
        if loaded is not None:
            leave_if_device_is_lost(error, loaded.source.device)
        ran_out = is_out_of_memory(error)
        who = "a model"
        if loaded is not None:
            who = f"{loaded.source.id.slashed}, signature {name!r}"
        fault = serving_error(error, who)
        # This frame refers to the error, and so to all that the model had made.
        forget_frames(fault)
        text = (
            fault.to_bytes(_MAX_TEXT_BYTES)
            if isinstance(fault, InvalidItems)
            else fault.message.encode()[:_MAX_TEXT_BYTES]
        )
        ns = time.perf_counter_ns() - begun_ns
        slab.write_words(slot.reply_word, (int(fault.code), ns, 0, len(text)))
        slab.write_text(slot.reply_word + REPLY_WORDS, text)
        del fault  # frees what the model's frames held
        if ran_out:
            self._on_out_of_memory()
