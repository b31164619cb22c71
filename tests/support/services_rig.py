"""Both coordinators as the coordinator process has them, without its rings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.partitions import LoadState, TopicPartitions
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.coordinator.services import Services
from mpbroker.ipc.append_job import NewBatch
from mpbroker.ipc.calls import (
    AllocateProducerIds,
    Failed,
    ForwardedRequest,
    ForwardedResponse,
    Message,
    ProducerIds,
)
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import REQUESTS
from mpbroker.protocol.messages import Message as Request
from mpbroker.protocol.topic_names import GROUP_TOPIC
from shm.table import SlotTable

PARTITIONS = 5
_KEYS = {message: ApiKey(key) for key, message in REQUESTS.items()}


class ServicesRig:
    """`answers` has what was sent to handlers, by request; `asked` the calls that wait for the process.

    `has_topics`: both coordinators' topics are there and empty.
    """

    def __init__(self, *, has_topics: bool = True) -> None:
        self.metadata = MetadataState()
        self.add_topic("t", 4)
        self.answers: dict[int, Message] = {}
        self.asked: list[tuple[Message, Callable[[Message], None]]] = []
        self._numbers = itertools.count(1)
        self._forms: dict[int, tuple[ApiKey, int]] = {}
        announcer = cast(Announcer, None)
        self.services = Services(
            BrokerConfig(),
            cast(SlotTable, None),
            cast(LogLink, self),
            announcer,
            lambda: self.metadata,
            lambda *_: True,
            self._ask,
            self._answer,
            (),
        )
        self.groups = self.services.groups.shard
        self.transactions = self.services.transactions.shard
        if has_topics:
            self.add_topic(GROUP_TOPIC, PARTITIONS)
        for partitions in (self.groups.partitions, self.transactions.partitions):
            self.open(partitions, PARTITIONS if has_topics else 0)
        self.transactions.state.epochs = dict.fromkeys(range(PARTITIONS), 0)

    def open(self, partitions: TopicPartitions, count: int) -> None:
        """Let a coordinator's topic be there, with partitions that were read and are empty."""
        partitions.open(count)
        for partition in range(count):
            partitions.set(partition, LoadState.LOADED)

    def add_topic(self, name: str, partitions: int) -> None:
        topic = Topic(name, name.encode().ljust(16, b"-")[:16], partitions, {})
        self.metadata.topics[topic.topic_id] = topic
        self.metadata.ids[name] = topic.topic_id

    def append_all(self, batches: Sequence[NewBatch], done: Callable[[list[Batch]], None]) -> None:
        raise NotImplementedError

    def _ask(self, call: Message, done: Callable[[Message], None]) -> None:
        if isinstance(call, AllocateProducerIds):
            done(ProducerIds(1000, 100))
        else:
            self.asked.append((call, done))

    def _answer(self, caller: Caller, answer: Message) -> bool:
        assert caller.request not in self.answers, f"{caller} is answered twice"
        self.answers[caller.request] = answer
        return True

    def caller(self, request: int) -> Caller:
        return Caller(0, 0, request)

    def send(self, request: Request, version: int) -> int:
        """Forward a request, as a handler does. Returns its number."""
        key = _KEYS[type(request)]
        return self.send_bytes(key, encode_bytes(encode_request(key, version, request)), version)

    def send_bytes(self, api_key: int, body: bytes, version: int) -> int:
        number = next(self._numbers)
        self._forms[number] = ApiKey(api_key), version
        request = ForwardedRequest(api_key, version, "c", "/h", "User:u", body)
        self.services.receive(self.caller(number), request)
        return number

    def heard(self, number: int) -> Any:
        """Return the response, the error code of the whole request, or None if there is no answer."""
        answer = self.answers.get(number)
        if isinstance(answer, ForwardedResponse):
            key, version = self._forms[number]
            return decode_response(key, version, answer.body)[0]
        return ErrorCode(answer.error) if isinstance(answer, Failed) else None  # type: ignore[call-arg]

    def settle(self) -> None:
        """Let all records become durable."""
        for queue in (self.groups.queue, self.transactions.queue):
            while batches := queue.next_round():
                queue.finish([ErrorCode.NONE] * len(batches))

    def wait(self) -> None:
        """Let the next timer of the groups go off."""
        deadline_ms = self.groups.timers.next_deadline_ms()
        assert deadline_ms is not None
        self.groups.timers.run(deadline_ms, "group", self.groups.refuse_waiters)
