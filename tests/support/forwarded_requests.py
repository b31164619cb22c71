"""Requests that a handler hands on to the coordinator, and what comes back: for tests of such APIs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from mpbroker.coordinator.runtime.requests import Answers, Caller
from mpbroker.handlers.apis import all_apis
from mpbroker.ipc.calls import ForwardedRequest
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.codec import decode_request
from mpbroker.protocol.messages import Message
from tests.support.handler_rig import Rig

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


def each_version(keys: Iterable[int]) -> list[tuple[int, int]]:
    """(key, version) of all that handlers serve of these APIs."""
    served = all_apis()
    return [(key, version) for key in keys for version in range(served[key].oldest, served[key].latest + 1)]


def hand_on(
    rig: Rig, key: int, version: int, body: Message, connection: int = 7
) -> tuple[Any, ForwardedRequest]:
    """The call that a request becomes; the request itself is parked, if it is Python that forwards it."""
    before = rig.handler.turn.forwarded_count
    rig.send(key, version, body, connection=connection)
    parked = [(reply.kind, reply.connection) for reply in rig.processor.replies()]
    by_turn = rig.handler.turn.forwarded_count - before
    assert parked == ([] if by_turn else [(SlotKind.PARKED, connection)])
    ((call, message),) = rig.coordinator.take()
    assert isinstance(message, ForwardedRequest)
    return call, message


def body_of(message: ForwardedRequest) -> Any:
    """The request as the coordinator reads it."""
    return decode_request(message.api_key, message.version, message.body)[0]


def answered(rig: Rig, call: Any, response: Message) -> None:
    """The coordinator answers with the response, in the form of the request's version."""
    asked = rig.coordinator.asked[call.request]
    caller = Caller(call.owner, 0, call.request, asked.api_key, asked.version)

    def answer(_waiter: object, message: Any) -> bool:
        rig.coordinator.answer(call, message)
        return True

    Answers(answer).answer(caller, response)
    rig.turn()
