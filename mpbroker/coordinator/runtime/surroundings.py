"""What the coordinator process does for the state machines in it, and what each of them makes of that.

Handlers forward requests as they are, and get the coordinator's answers in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.runtime.batches import PartitionBatch
from mpbroker.coordinator.state import MetadataState, Topic
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse
from mpbroker.ipc.calls import Message as Call
from mpbroker.ipc.metadata import Places
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import REQUESTS, Message

log = logging.getLogger("mpbroker")


class Surroundings(Protocol):
    """What the coordinator process does for the state machines in it."""

    @property
    def metadata(self) -> MetadataState: ...

    def images_of(self, topic_id: bytes) -> Places | None:
        """Where the log process has the topic's partitions; None: it has not opened them yet."""

    def answer_waiter(self, waiter: Waiter, answer: Call) -> bool:
        """False: nobody hears it."""

    def ask(self, call: Call, done: Callable[[Call], None]) -> None:
        """`done` hears the answer."""

    def append_for_us(
        self, topic: Topic, batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None: ...


class Topics:
    """Those there are, by name and by id."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def partitions_of(self, name: str) -> int:
        """0 if there is no such topic."""
        topic_id = self.id_of(name)
        return 0 if topic_id is None else self._surroundings.metadata.topics[topic_id].partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._surroundings.metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        return self._surroundings.metadata.ids.get(name)


class Forwarded:
    """Requests of the APIs that a coordinator serves, and its way to answer them."""

    def __init__(self, served: Iterable[ApiKey], surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
            key: msgspec.msgpack.Decoder(REQUESTS[key]) for key in served
        }
        self._encoder = msgspec.msgpack.Encoder()

    def handle(self, waiter: Waiter, request: ForwardedRequest, handle: Callable[[Message], None]) -> None:
        """A fault of ours is the answer to this request, and no other's affair."""
        try:
            handle(self._decoders[request.api_key].decode(request.body))
        except Exception:
            log.exception("a forwarded request failed: API key %d", request.api_key)
            self.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def answer(self, waiter: Waiter, response: Message) -> None:
        self._surroundings.answer_waiter(waiter, ForwardedResponse(self._encoder.encode(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        self._surroundings.answer_waiter(waiter, Failed(error, error.message))
