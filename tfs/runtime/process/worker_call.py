"""A task in a slot of a slab: how it is handed over and answered."""

from __future__ import annotations

import os

from tfs.core.errors import Internal, InvalidArgument, ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.runtime.guest.slab import Slot
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.slab_call import read_reply, write_request


class WorkerCall:
    """A task that a worker has, and what is needed to read its reply. Loop-confined.

    Attributes:
        model: The model that is called.
        task: What is computed.
        signature_index: Number of the signature among the model's.
        sequence: Its number among the requests written to this worker.
        begun_s: Since when the worker can have been in it, by the loop's clock.
        limit_s: How long it may take.

    """

    __slots__ = ("begun_s", "limit_s", "model", "sequence", "signature_index", "task")

    begun_s: float
    limit_s: float

    def __init__(
        self,
        model: ProcessModel,
        task: InferenceTask,
        signature_index: int,
        sequence: int,
    ) -> None:
        self.model = model
        self.task = task
        self.signature_index = signature_index
        self.sequence = sequence


def send_request(
    channel: CallChannel,
    slot: Slot,
    model: ProcessModel,
    signature_index: int,
    task: InferenceTask,
) -> ServingError | None:
    """Writes a task into a free slot; the caller rings.

    Returns:
        None; or why it cannot be handed over, and then nothing was.

    """
    try:
        overflow_fd = write_request(
            channel.slab,
            slot,
            model.model_id,
            signature_index,
            task,
            model.request_plans[signature_index],
        )
        if overflow_fd is not None:
            try:
                channel.send_tensors(overflow_fd)
            finally:
                os.close(overflow_fd)
    except Exception as error:
        return why_not_handed_over(model, error)
    return None


def why_not_handed_over(model: ProcessModel, error: Exception) -> ServingError:
    """Returns the answer to a task that could not be written."""
    if isinstance(error, InvalidArgument):
        return InvalidArgument(f"{model.who}: {error.message}")
    return Internal(f"{model.who}: a request cannot be handed over: {error}")


def take_reply(
    channel: CallChannel, slot: Slot, call: WorkerCall
) -> tuple[Outcome, float]:
    """Reads the reply in a call's slot; records with the model how long the call took.

    Returns:
        The outcome, and the seconds that the call took in the worker.

    Raises:
        CorruptReply: The worker wrote nonsense; it must not be used any more.

    """
    model, index = call.model, call.signature_index
    overflow_fd: int | None = None
    try:
        if channel.slab.words[slot.reply_word + 2]:
            overflow_fd = channel.receive_tensors()
        outcome, call_s = read_reply(
            channel.slab,
            slot,
            model.who,
            call.task.signature,
            overflow_fd,
            model.reply_plans[index],
        )
    finally:
        if overflow_fd is not None:
            os.close(overflow_fd)
    if not isinstance(outcome, ServingError):
        model.times.observe(index, call.task.num_rows, call_s)
        model.last_call_s = call_s
    return outcome, call_s
