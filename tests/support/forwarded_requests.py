"""Requests that a handler hands on to the coordinator, and what comes back: for tests of such APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mpbroker.ipc.calls import ForwardedRequest, ForwardedResponse
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.messages import Message
from tests.support.handler_rig import Rig, request_frame

CODES = ("error_code", "partition_error_code")


def errors_in(value: object) -> Iterator[int]:
    """Every error code in a response, however deep."""
    if isinstance(value, list):
        for each in value:
            yield from errors_in(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            content = getattr(value, name)
            if name in CODES:
                yield content
            else:
                yield from errors_in(content)


def hand_on(
    rig: Rig, key: int, version: int, body: Message, connection: int = 7
) -> tuple[Any, ForwardedRequest]:
    """The call that a request becomes; the request itself is parked."""
    rig.processor.send(request_frame(key, version, body), connection=connection)
    rig.turn()
    (reply,) = rig.processor.replies()
    assert (reply.kind, reply.connection) == (SlotKind.PARKED, connection)
    ((call, message),) = rig.coordinator.take()
    assert isinstance(message, ForwardedRequest)
    return call, message


def answered(rig: Rig, call: Any, response: Message) -> None:
    rig.coordinator.answer(call, ForwardedResponse(msgspec.msgpack.encode(response)))
    rig.turn()
