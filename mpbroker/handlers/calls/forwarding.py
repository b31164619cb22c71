"""Requests about groups and transactions, on their way to the coordinator and back (KIP-590).

A handler passes on the bytes that the client has sent, and gets back the bytes of the response. While the
coordinator has a request, the request is parked: it does not count as load of a handler, and is cancelled if
its connection ends. A JoinGroup may be parked for minutes. No request keeps the coordinator busy for long:
each API limits how much a request may name, and some requests are forwarded in parts.

The native turn forwards short commits and heartbeats, which come here only in uncommon cases (`take_over`;
`hot_path/forwarded.pxd`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.hot_path.turn import Forwarded
from mpbroker.handlers.requests.limits import KEPT_BYTES
from mpbroker.handlers.requests.parked_memory import REQUEST_BYTES, ParkedMemory
from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.ipc.slots import Call
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ApiError, ErrorCode, error_code
from mpbroker.protocol.messages import Message
from mpbroker.protocol.numbers import FIRST_VERSION_WITH_REQUIRED_ID, WAIT_FOR_OTHERS

# Groups or transactional ids asked for at once: one request about many must not hold up all heartbeats.
NAMES_AT_ONCE = 500
NAME_BYTES_AT_ONCE = 256 << 10
# The long field of each request that waits for other members.
LONG_FIELDS: Final = dict(zip(WAIT_FOR_OTHERS, ("protocols", "assignments"), strict=True))


class Forwarding:
    """Requests that wait for the coordinator's response, by connection, with the numbers of their calls."""

    def __init__(self, coordinator: PatientClient, parked_memory: ParkedMemory) -> None:
        self._coordinator = coordinator
        self._parked_memory = parked_memory
        self._away: dict[int, dict[PendingRequest, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._away.values()))

    # ---- as it came

    def pass_on(self, context: PendingRequest) -> None:
        """Pass a request on unchanged. Fail a JoinGroup or SyncGroup if there is no memory for its wait."""
        if context.slot.api_key in WAIT_FOR_OTHERS:
            size = REQUEST_BYTES + context.body_bytes
            if not self._parked_memory.has_room(context, size):
                context.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            self._parked_memory.charge(context, size)
        self._forward(context, context.version, context.raw_body(), context.respond_forwarded)

    # ---- in parts

    def forward_for_each(
        self,
        context: PendingRequest,
        names: Iterable[str],
        request: Callable[[list[str]], Message],
        results_of: Callable[[Any], list[Any]],
    ) -> Generator[None, None, list[Any]]:
        """Forward a request about many names as several requests, each name once; return all results.

        `request` makes a request about a list of names. If its response omits names at the end of the list,
        they are asked for again. `results_of` returns the results in a response.
        """
        left = list(dict.fromkeys(names))
        longest = max(map(len, left), default=0) or 1
        at_once = max(1, min(NAMES_AT_ONCE, NAME_BYTES_AT_ONCE // longest))
        results: list[Any] = []
        while True:
            response = yield from self.forward(context, context.version, request(left[:at_once]))
            found = results_of(response)
            results += found
            del left[: len(found)]
            if not left:
                return results

    def forward(self, context: PendingRequest, version: int, request: Message) -> Generator[None, None, Any]:
        """Forward a part of a request, in this version of its API; return the response.

        Raises ApiError if all responses together are too long.
        """
        key = context.slot.api_key
        body = encode_bytes(encode_request(key, version, request))
        answer: ForwardedResponse = yield from context.wait(partial(self._forward, context, version, body))
        if context.exceeds_response_limit(len(answer.body)):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        return decode_response(key, version, answer.body)[0]

    # ---- on its way

    def _forward(
        self, context: PendingRequest, version: int, body: bytes, then: Callable[[ForwardedResponse], None]
    ) -> None:
        """Send a request to the coordinator. `then` is called with its response."""
        slot, session = context.slot, context.session
        call = ForwardedRequest(
            slot.api_key, version, context.client_id, f"/{session.client_host}", session.principal, body
        )

        answered = context.later(partial(self._answered, context, then))
        number = self._coordinator.call(call, answered, slot.connection)
        if number:
            self._away.setdefault(slot.connection, {})[context] = number
            context.broker.responses.parked(slot, is_brief=slot.api_key not in WAIT_FOR_OTHERS)

    def _answered(
        self, context: PendingRequest, then: Callable[[ForwardedResponse], None], message: calls.Message
    ) -> None:
        self._back(context)
        if context.has_response:
            return
        match message:
            case ForwardedResponse():
                then(message)
            case MalformedRequest(reason):
                context.refuse(reason)
            case Failed(error, _):
                context.fail(error_code(error))
            case _:
                context.fail(ErrorCode.UNKNOWN_SERVER_ERROR)

    # ---- by the turn

    def take_over(self, context: PendingRequest, call: Forwarded) -> None:
        """Take over a request that the native turn has forwarded, as if `pass_on` had passed it on."""
        context.was_passed_on(call.taken_ns, call.passed_on_ns)
        answered = context.later(partial(self._answered, context, context.respond_forwarded))
        self._away.setdefault(context.slot.connection, {})[context] = call.number
        self._coordinator.adopt(call.number, call.block, call.generation, call.size, answered)

    def take_over_dropped(self, call: Forwarded) -> None:
        """Take over the call of a request that has ended; its answer is ignored."""
        self._coordinator.adopt(call.number, call.block, call.generation, call.size, lambda _answer: None)

    def taken(self, call: Call) -> None:
        """Release the memory of a request that waits for other group members: the coordinator has read it."""
        self._coordinator.taken(call.request)
        for context, number in self._away.get(call.connection, {}).items():
            if number == call.request:
                key = ApiKey(context.slot.api_key)
                if not context.broker.logs_requests():
                    context.shed(LONG_FIELDS[key])
                # From now on a JoinGroup counts at its group, and an assignment once it is written.
                if key is ApiKey.JOIN_GROUP:
                    self._parked_memory.charge(context, REQUEST_BYTES + min(context.body_bytes, KEPT_BYTES))

    def _back(self, context: PendingRequest) -> None:
        """Record that the request no longer waits for the coordinator."""
        of_connection = self._away.get(context.slot.connection, {})
        of_connection.pop(context, None)
        if not of_connection:
            self._away.pop(context.slot.connection, None)

    def cancel(self, connection: int) -> None:
        """Cancel the requests of a closed connection."""
        for context, number in self._away.pop(connection, {}).items():
            context.cancel()
            self._coordinator.abandon(number)

    def _all(self) -> list[tuple[PendingRequest, int]]:
        return [one for of_connection in self._away.values() for one in of_connection.items()]

    def forget_processor(self, processor: int) -> None:
        """Abandon the requests of a dead processor."""
        for context, number in self._all():
            if context.slot.processor == processor:
                self._back(context)
                self._coordinator.abandon(number)

    def release(self) -> None:
        """Fail requests that wait for other group members, since this handler stops. Their clients retry.

        Who joins without a member id waits for nobody. If that answer were lost, the group would wait for the
        id in it, which nobody knows, until the session timeout has passed.
        """
        for context, number in self._all():
            if context.slot.api_key in WAIT_FOR_OTHERS and not _is_given_an_id(context):
                self._back(context)
                context.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._coordinator.abandon(number)


def _is_given_an_id(context: PendingRequest) -> bool:
    """Return True if the answer is no more than the id of a new member."""
    if context.slot.api_key != ApiKey.JOIN_GROUP or context.version < FIRST_VERSION_WITH_REQUIRED_ID:
        return False
    return not context.body.member_id and context.body.group_instance_id is None
