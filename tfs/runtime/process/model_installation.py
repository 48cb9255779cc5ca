"""Has a worker load a model, with a lane of its own if the model asks for one."""

from __future__ import annotations

from dataclasses import replace

from tfs.core.errors import Code
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.call_lanes import CallLanes
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.worker import (
    OnReply,
    Worker,
    WorkerReply,
)


def install(
    model: ProcessModel,
    worker: Worker,
    lanes: CallLanes,
    slab_bytes: int,
    on_reply: OnReply,
    *,
    background: bool,
    again: bool,
) -> None:
    """Has a worker load a model from its files. On the loop.

    Args:
        model: The model; its calls may be handed over once it is loaded.
        worker: The worker.
        lanes: Gets a lane for the model if that takes several calls at once.
        slab_bytes: The size of that lane's slab.
        on_reply: Takes the worker's reply. After an error, nothing of the model is left
            on the worker. None means that the worker died during the load.
        background: Whether the load gives way to everything else.
        again: Whether an earlier worker had it, so that nobody asks what it changes.

    """

    def on_loaded(reply: WorkerReply | None) -> None:
        if reply is None or reply.error() is not None or model.source.concurrency == 1:
            on_reply(reply)
        else:
            _open_lane(model, worker, lanes, slab_bytes, reply, on_reply)

    fields: dict[str, object] = {
        "source": replace(model.source, was_measured=True) if again else model.source,
        "model": model.model_id,
        "files": list(model.files.files),
    }
    worker.send("load", fields, model.files.fds, on_loaded, background=background)


def _open_lane(
    model: ProcessModel,
    worker: Worker,
    lanes: CallLanes,
    slab_bytes: int,
    loaded: WorkerReply,
    on_reply: OnReply,
) -> None:
    number = {"model": model.model_id}

    def give_up(error: WorkerReply) -> None:
        worker.send("unload", number, (), lambda _: on_reply(error), background=False)

    try:
        channel = CallChannel(slab_bytes, model.source.concurrency)
    except OSError as error:
        text = f"{model.who}: no memory for its calls: {error}"
        fields = {"code": int(Code.INTERNAL), "message": text}
        give_up(WorkerReply(fields, b"", []))
        return

    def on_open(reply: WorkerReply | None) -> None:
        if reply is None or reply.error() is not None:
            channel.close()
            if reply is None:
                on_reply(None)
            else:
                give_up(reply)
            return
        lanes.open_own(model, channel)
        on_reply(loaded)

    worker.send("open", number, channel.remote_fds, on_open, background=False)
    channel.detach()
