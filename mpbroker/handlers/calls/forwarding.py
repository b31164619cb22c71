"""Requests about groups and transactions, on their way to the coordinator and back (KIP-590).

A handler passes a request on as its client sent it, and gets back the response as it is sent. While the
coordinator has the request it is parked: it counts as nobody's load, and the end of its connection is
noticed. A JoinGroup may be away for minutes. Requests on which the coordinator would work for long do not
reach it at once: what a request may name is bounded by its API, and some are asked a part at a time.

Short commits and heartbeats are forwarded by the turn, and come here only if something uncommon becomes of
them (`take_over`; `hot_path/forwarded.pxd`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.hot_path.turn import Forwarded
from mpbroker.handlers.requests.exchange import Exchange, Outcome
from mpbroker.handlers.requests.limits import KEPT_BYTES
from mpbroker.handlers.requests.parked_memory import REQUEST_BYTES, ParkedMemory
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.ipc.slots import Call
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import Message

# Groups or transactional ids asked for at once: one request about many must not hold up all heartbeats.
NAMES_AT_ONCE = 500
NAME_BYTES_AT_ONCE = 256 << 10
# APIs whose requests wait for other members, and what is long in them.
WAITING: Final = {ApiKey.JOIN_GROUP: "protocols", ApiKey.SYNC_GROUP: "assignments"}


class _Parts:
    """A request that is forwarded in parts, one after the other.

    Calls are made with bound methods. Two functions that name each other would be a cycle that keeps the
    request until a collection.
    """

    def __init__(
        self,
        forward: Callable[[Exchange, int, bytes, Callable[[ForwardedResponse], None]], None],
        exchange: Exchange,
        version: int,
        following: Callable[[Any], Message | None],
        then: Callable[[], Outcome],
    ) -> None:
        self._forward = forward
        self._exchange = exchange
        self._version = version
        self._following = following
        self._then = then

    def ask(self, request: Message) -> None:
        body = encode_bytes(encode_request(self._exchange.slot.api_key, self._version, request))
        self._forward(self._exchange, self._version, body, self._answered)

    def _answered(self, answer: ForwardedResponse) -> None:
        if self._exchange.answers_too_much(len(answer.body)):
            return
        response, _ = decode_response(self._exchange.slot.api_key, self._version, answer.body)
        request = self._following(response)
        if request is None:
            self._exchange.finish(self._then())
        else:
            self.ask(request)


class Forwarding:
    """Requests that the coordinator has, by connection, with the numbers of their calls."""

    def __init__(self, coordinator: PatientClient, parked_memory: ParkedMemory) -> None:
        self._coordinator = coordinator
        self._parked_memory = parked_memory
        self._away: dict[int, dict[Exchange, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._away.values()))

    # ---- as it came

    def pass_on(self, exchange: Exchange) -> None:
        """Pass a request on as it came. If it waits for other members, there must be memory for that."""
        if exchange.slot.api_key in WAITING:
            size = REQUEST_BYTES + exchange.body_bytes
            if not self._parked_memory.has_room(exchange, size):
                exchange.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            self._parked_memory.charge(exchange, size)
        self._forward(
            exchange,
            exchange.version,
            exchange.raw_body(),
            lambda answer: exchange.reply_encoded(answer.body, answer.errors),
        )

    # ---- in parts

    def forward_for_each(
        self,
        exchange: Exchange,
        names: Iterable[str],
        request: Callable[[list[str]], Message],
        results_of: Callable[[Any], list[Any]],
        then: Callable[[list[Any]], Outcome],
    ) -> None:
        """Forward a request about many names, some at a time, each of them once.

        `request` makes the request about some names. Its response is about at least the first of them. `then`
        makes the answer from all results.
        """
        left = list(dict.fromkeys(names))
        longest = max(map(len, left), default=0) or 1
        at_once = max(1, min(NAMES_AT_ONCE, NAME_BYTES_AT_ONCE // longest))
        results: list[Any] = []

        def following(response: Any) -> Message | None:
            found = results_of(response)
            results.extend(found)
            del left[: len(found)]
            return request(left[:at_once]) if left else None

        first = request(left[:at_once])
        self.forward_in_parts(exchange, exchange.version, first, following, lambda: then(results))

    def forward_in_parts(
        self,
        exchange: Exchange,
        version: int,
        first: Message,
        following: Callable[[Any], Message | None],
        then: Callable[[], Outcome],
    ) -> None:
        """Forward a request in parts, each in the given version of its API.

        `following` gets each response and returns the next request, or None at the end; then `then` makes the
        answer.
        """
        _Parts(self._forward, exchange, version, following, then).ask(first)

    # ---- on its way

    def _forward(
        self, exchange: Exchange, version: int, body: bytes, then: Callable[[ForwardedResponse], None]
    ) -> None:
        """Send a call to the coordinator. `then` answers the request, or forwards another part."""
        slot = exchange.slot
        call = ForwardedRequest(
            slot.api_key, version, exchange.client_id, f"/{exchange.session.client_host}", body
        )

        answered = exchange.later(partial(self._answered, exchange, then))
        number = self._coordinator.call(call, answered, slot.connection)
        if number:
            self._away.setdefault(slot.connection, {})[exchange] = number
            exchange.broker.answers.parked(slot, is_brief=slot.api_key not in WAITING)

    def _answered(
        self, exchange: Exchange, then: Callable[[ForwardedResponse], None], message: calls.Message
    ) -> None:
        self._back(exchange)
        if exchange.has_answer:
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

    # ---- by the turn

    def take_over(self, exchange: Exchange, call: Forwarded) -> None:
        """Take over a request that the turn has passed on: the rest of its way is like that of others."""
        exchange.was_passed_on(call.taken_ns, call.passed_on_ns)

        def then(answer: ForwardedResponse) -> None:
            exchange.reply_encoded(answer.body, answer.errors)

        answered = exchange.later(partial(self._answered, exchange, then))
        self._away.setdefault(exchange.slot.connection, {})[exchange] = call.number
        self._coordinator.adopt(call.number, call.block, call.generation, call.size, answered)

    def take_over_dropped(self, call: Forwarded) -> None:
        """Take over the call of a request that nobody is there for any more."""
        self._coordinator.adopt(call.number, call.block, call.generation, call.size, lambda _answer: None)

    def taken(self, call: Call) -> None:
        """Let go of a request that the coordinator has read, and that waits for other members."""
        self._coordinator.taken(call.request)
        for exchange, number in self._away.get(call.connection, {}).items():
            if number == call.request:
                key = ApiKey(exchange.slot.api_key)
                exchange.shed(WAITING[key])
                # What a member brings counts at its group from now on; an assignment only when it is written.
                if key is ApiKey.JOIN_GROUP:
                    self._parked_memory.charge(exchange, REQUEST_BYTES + min(exchange.body_bytes, KEPT_BYTES))

    def _back(self, exchange: Exchange) -> None:
        """Note that the coordinator has the request no more."""
        of_connection = self._away.get(exchange.slot.connection, {})
        of_connection.pop(exchange, None)
        if not of_connection:
            self._away.pop(exchange.slot.connection, None)

    def cancel(self, connection: int) -> None:
        """Cancel the requests of a closed connection."""
        for exchange, number in self._away.pop(connection, {}).items():
            exchange.cancel()
            self._coordinator.abandon(number)

    def _all(self) -> list[tuple[Exchange, int]]:
        return [one for of_connection in self._away.values() for one in of_connection.items()]

    def forget_processor(self, processor: int) -> None:
        """Abandon the requests of a dead processor; there is nobody to answer."""
        for exchange, number in self._all():
            if exchange.slot.processor == processor:
                self._back(exchange)
                self._coordinator.abandon(number)

    def release(self) -> None:
        """Tell clients that wait for other members to ask again, because this handler stops."""
        for exchange, number in self._all():
            if exchange.slot.api_key in WAITING:
                self._back(exchange)
                exchange.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._coordinator.abandon(number)
