"""Requests about groups and transactions, on their way to the coordinator and back (KIP-590).

A handler passes a request on as its client sent it, and gets back the response as it is sent. While the
coordinator has the request it is parked: it counts as nobody's load, and the end of its connection is
noticed. A JoinGroup may be away for minutes. Requests on which the coordinator would work for long do not
reach it at once: a request may name no more than `exchange.NAMED_MAX` things, and some are asked a part at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.requests.exchange import NAMED_MAX, Exchange
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import Message

# Groups or transactional ids asked for at once: one request about many must not hold up all heartbeats.
NAMES_AT_ONCE = 500
# APIs whose requests wait for other members.
WAITING: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


class Forwarding:
    """Requests that the coordinator has, by connection; each connection has one under way."""

    def __init__(self, coordinator: PatientClient) -> None:
        self._coordinator = coordinator
        self._away: dict[int, tuple[Exchange, int]] = {}

    def __len__(self) -> int:
        return len(self._away)

    # ---- as it came

    def pass_on(self, exchange: Exchange, named: Callable[[Any], int] | None = None) -> None:
        """Pass a request on as it came, unless it names too much.

        `named` counts what it names. Each name takes at least a byte, so short requests are not looked into.
        A long one is decoded here, and the coordinator gets it without unknown tagged fields, of which there
        may be millions.
        """
        body = exchange.raw_body()
        if len(body) > NAMED_MAX:
            if named is not None and exchange.names_too_many(named(exchange.body)):
                return
            body = encode_bytes(encode_request(exchange.slot.api_key, exchange.version, exchange.body))
        self._forward(
            exchange,
            exchange.version,
            body,
            lambda answer: exchange.reply_encoded(answer.body, answer.errors),
        )

    # ---- in parts

    def forward_for_each(
        self,
        exchange: Exchange,
        names: Iterable[str],
        request: Callable[[list[str]], Message],
        results_of: Callable[[Any], list[Any]],
        then: Callable[[list[Any]], Message],
    ) -> None:
        """Forward a request about many names, some at a time, each of them once.

        `request` makes the request about some names. Its response is about at least the first of them. `then`
        makes the answer from all results.
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

        first = request(left[:NAMES_AT_ONCE])
        self.forward_in_parts(exchange, exchange.version, first, following, lambda: then(results))

    def forward_in_parts(
        self,
        exchange: Exchange,
        version: int,
        first: Message,
        following: Callable[[Any], Message | None],
        then: Callable[[], Message],
    ) -> None:
        """Forward a request in parts, each in the given version of its API.

        `following` gets each response and returns the next request, or None at the end; then `then` makes the
        answer.
        """
        key = exchange.slot.api_key

        def answered(answer: ForwardedResponse) -> None:
            request = following(decode_response(key, version, answer.body)[0])
            if request is None:
                exchange.reply(then())
            else:
                forward(request)

        def forward(request: Message) -> None:
            self._forward(exchange, version, encode_bytes(encode_request(key, version, request)), answered)

        forward(first)

    # ---- on its way

    def _forward(
        self, exchange: Exchange, version: int, body: bytes, then: Callable[[ForwardedResponse], None]
    ) -> None:
        """Send a call to the coordinator. `then` answers the request, or forwards another part."""
        slot = exchange.slot
        call = ForwardedRequest(
            slot.api_key, version, exchange.client_id, f"/{exchange.session.client_host}", body
        )

        def answered(message: calls.Message) -> None:
            if self._away.get(slot.connection, (None, 0))[0] is exchange:
                del self._away[slot.connection]
            if exchange.done:
                return
            match message:
                case ForwardedResponse():
                    then(message)
                case MalformedRequest(reason):
                    exchange.refuse(reason)
                case Failed(error, _):
                    exchange.fail(error_code(error))
                case _:
                    exchange.fail(ErrorCode.UNKNOWN_SERVER_ERROR)

        number = self._coordinator.call(call, exchange.later(answered), slot.connection)
        if number:
            self._away[slot.connection] = exchange, number
            exchange.broker.answers.parked(slot)

    def cancel(self, connection: int) -> None:
        """Cancel the request of a closed connection."""
        found = self._away.pop(connection, None)
        if found is not None:
            found[0].cancel()
            self._coordinator.abandon(found[1])

    def forget_processor(self, processor: int) -> None:
        """Abandon the requests of a dead processor; there is nobody to answer."""
        for connection, (exchange, number) in list(self._away.items()):
            if exchange.slot.processor == processor:
                del self._away[connection]
                self._coordinator.abandon(number)

    def release(self) -> None:
        """Tell clients that wait for other members to ask again, because this handler stops."""
        for connection, (exchange, number) in list(self._away.items()):
            if exchange.slot.api_key in WAITING:
                del self._away[connection]
                exchange.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._coordinator.abandon(number)
