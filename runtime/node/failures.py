"""Errors as bodies of replies: their text, and the exception itself where that survives the way."""

from __future__ import annotations

import pickle

from meshbook.runtime.errors import ActorError, MessageTooLarge, PickleError, SupervisionError
from meshbook.runtime.traces import name_cells
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, pack
from meshbook.runtime.wire.messages import Reply


def pack_error(reply: Reply, text: str, exception: bytes | None, limit: int) -> Buffer:
    """The frame of a reply that is an error. Over the limit only the beginning of its text goes."""
    try:
        return pack(reply, pickling.dumps((text, exception), "an error"), limit)
    except MessageTooLarge:
        # Who asked must hear that it failed, if not all of it. A character has four bytes at most.
        beginning = f"{text[: limit // 8]}… [cut: the error is over MESHBOOK_MAX_MESSAGE_BYTES]"
        return pack(reply, pickling.dumps((beginning, None), "an error"), limit)


def pickle_exception(error: BaseException) -> bytes | None:
    """The exception as bytes, where it survives the round trip; many with a constructor of their own do not."""
    try:
        body = pickling.dumps(error, "an exception")
        data = b"".join(map(bytes, body)) if len(body) == 1 else None
        if data is not None:
            pickle.loads(data)
        return data
    except Exception:
        return None


def rebuild_error(status: str, body: Body) -> BaseException:
    """What a reply of this status lets its asker raise."""
    try:
        text, data = pickling.loads(body, "an error")
    except PickleError as error:
        return ActorError(str(error))
    text = name_cells(text)
    if status == "lost":
        return SupervisionError(text)
    try:
        exception = pickle.loads(data) if data is not None else None
    except Exception:
        return ActorError(text)  # its class does not exist in this process
    return exception if status == "sent" and exception is not None else ActorError(text, exception)
