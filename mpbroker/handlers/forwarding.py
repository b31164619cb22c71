"""Requests about groups and transactions, on their way to the coordinator and back.

A handler only hands them on: while the coordinator has one it is parked, so that it counts as nobody's load
and the end of its connection is noticed. A JoinGroup may be away for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import msgspec

from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.patient_client import PatientClient
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import RESPONSES, Message

# So many groups or transactional ids are asked for at once, so that one request about many does not hold up
# the heartbeats of all.
NAMES_AT_ONCE = 500
# These wait for other members.
WAITING: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(api_key: int) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(RESPONSES[api_key])


class Forwarding:
    """What is with the coordinator, by connection: each has one request under way."""

    def __init__(self, coordinator: PatientClient) -> None:
        self._coordinator = coordinator
        self._away: dict[int, tuple[Exchange, int]] = {}

    def __len__(self) -> int:
        return len(self._away)

    def forward_for_each(
        self,
        exchange: Exchange,
        names: Iterable[str],
        request: Callable[[list[str]], Message],
        results_of: Callable[[Any], list[Any]],
        then: Callable[[list[Any]], Message],
    ) -> None:
        """A request about many names: some at a time, each of them once. `request` is that about some, and
        is answered for the first of them, at least one; `then` makes the answer from all results.
        """
        left = list(dict.fromkeys(names))
        if exchange.names_too_many(len(left)):
            return
        results: list[Any] = []

        def following(response: Any) -> Message | None:
            found = results_of(response)
            results.extend(found)
            del left[: len(found)]
            return request(left[:NAMES_AT_ONCE]) if left else None

        self.forward_in_parts(exchange, request(left[:NAMES_AT_ONCE]), following, lambda: then(results))

    def forward_in_parts(
        self,
        exchange: Exchange,
        first: Message,
        following: Callable[[Any], Message | None],
        then: Callable[[], Message],
    ) -> None:
        """`following` gets each response and has the next request, until there is none."""

        def go_on(response: Any) -> Message | None:
            request = following(response)
            if request is None:
                return then()
            self.forward(exchange, request, go_on)
            return None

        self.forward(exchange, first, go_on)

    def forward(self, exchange: Exchange, request: Message, then: Callable[[Any], Message | None]) -> None:
        """`then` makes the answer of this API's version from the coordinator's response, or has forwarded
        something else.
        """
        slot = exchange.slot
        call = ForwardedRequest(
            slot.api_key,
            exchange.version,
            exchange.client_id,
            f"/{exchange.session.client_host}",
            _encoder.encode(request),
        )

        def answered(message: calls.Message) -> None:
            if self._away.get(slot.connection, (None, 0))[0] is exchange:
                del self._away[slot.connection]
            if exchange.done:
                return
            if isinstance(message, ForwardedResponse):
                response = then(_decoder(slot.api_key).decode(message.body))
                if response is not None:
                    exchange.reply(response)
            else:
                code = message.error if isinstance(message, Failed) else ErrorCode.UNKNOWN_SERVER_ERROR
                exchange.fail(error_code(code))

        number = self._coordinator.call(call, exchange.later(answered), slot.connection)
        if number:
            self._away[slot.connection] = exchange, number
            exchange.broker.answers.parked(slot)

    def cancel(self, connection: int) -> None:
        """The connection is closed."""
        found = self._away.pop(connection, None)
        if found is not None:
            found[0].cancel()
            self._coordinator.abandon(found[1])

    def forget_processor(self, processor: int) -> None:
        """There is nobody to answer."""
        for connection, (exchange, number) in list(self._away.items()):
            if exchange.slot.processor == processor:
                del self._away[connection]
                self._coordinator.abandon(number)

    def release(self) -> None:
        """This handler stops: whoever waits for others is told to ask again."""
        for connection, (exchange, number) in list(self._away.items()):
            if exchange.slot.api_key in WAITING:
                del self._away[connection]
                exchange.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._coordinator.abandon(number)
