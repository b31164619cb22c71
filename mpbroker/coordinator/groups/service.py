"""The group coordinator within the coordinator process: its requests, its log and its topic.

`__consumer_offsets` is created when somebody first joins a group or commits an offset, and read when the log
process has opened it. If the log process dies nobody knows what became of a round that was under way: whoever
waits is told NOT_COORDINATOR, and the partitions are read again, as after a restart; sessions start anew.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.groups.group import Waiter
from mpbroker.coordinator.groups.journal import Journal, PartitionBatch
from mpbroker.coordinator.groups.loading import Loader
from mpbroker.coordinator.state import MetadataState, Topic
from mpbroker.ipc import calls
from mpbroker.ipc.calls import (
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    Failed,
    GroupRequest,
    GroupResponse,
)
from mpbroker.ipc.metadata import Places
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import REQUESTS, Message
from mpbroker.protocol.topic_names import GROUP_TOPIC
from shm import clock
from shm.table import SlotTable

# How long reading the log may keep everything else waiting, and how soon a partition is looked at again.
LOAD_SECONDS: Final = 0.02
LOAD_RETRY_MS: Final = 20
ONE_REPLICA: Final = 1
# What makes the first record of all: these wait until there is a topic for it.
BEGINNERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT})
SERVED: Final = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)

log = logging.getLogger("mpbroker")

_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    key: msgspec.msgpack.Decoder(REQUESTS[key]) for key in SERVED
}
_encoder = msgspec.msgpack.Encoder()


class Surroundings(Protocol):
    """What the coordinator process does for its groups."""

    @property
    def metadata(self) -> MetadataState: ...

    def images_of(self, topic_id: bytes) -> Places | None:
        """Where the log process has the topic's partitions; None: it has not opened them yet."""

    def answer_group(self, waiter: Waiter, answer: calls.Message) -> None: ...

    def create_for_groups(self, call: CreateTopics) -> None:
        """`GroupService.created` follows."""

    def append_for_groups(
        self, topic: Topic, batches: list[PartitionBatch], done: Callable[[dict[int, ErrorCode]], None]
    ) -> None: ...


class GroupService:
    """Also the coordinator's view of the topics there are, and its way to answer."""

    def __init__(self, config: BrokerConfig, table: SlotTable, surroundings: Surroundings) -> None:
        self._config = config
        self._table = table
        self._surroundings = surroundings
        self._journal = Journal(
            lambda group_id: self.coordinator.partition_for(group_id),
            clock.wall_ms,
            lambda: config.message_max_bytes,
            lambda group_id, waiter: self.coordinator.went_wrong(group_id, waiter),
        )
        self.coordinator = GroupCoordinator(
            config, clock, self._journal, self, self, lambda: str(uuid.uuid4())
        )
        self._topic_id: bytes | None = None
        self._images = Places()
        self._loader: Loader | None = None
        self._is_stuck = False
        self._held: list[tuple[Waiter, GroupRequest]] = []

    # --- requests

    def receive(self, waiter: Waiter, request: GroupRequest) -> None:
        if self.coordinator.partitions == [] and request.api_key in BEGINNERS:
            if not self._held:
                self._create_topic()
            self._held.append((waiter, request))
            return
        try:
            body = _decoders[request.api_key].decode(request.body)
            self.coordinator.handle(waiter, body, request.version, (request.client_id, request.client_host))
        except Exception:
            log.exception("a request of a group failed: API key %d", request.api_key)
            self.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def abandon(self, waiter: Waiter) -> None:
        """Whoever made this request is gone; it is still answered, to end it."""
        if any(entry[0] == waiter for entry in self._held):
            self._held = [entry for entry in self._held if entry[0] != waiter]
            self.fail(waiter, ErrorCode.NETWORK_EXCEPTION)
        self.coordinator.abandon(waiter)

    def abandon_all(self, is_gone: Callable[[Waiter], bool]) -> None:
        """A handler died with all it had asked for."""
        self._held = [entry for entry in self._held if not is_gone(entry[0])]
        for waiter in self.coordinator.rebalances.waiters():
            if is_gone(waiter):
                self.coordinator.abandon(waiter)

    def answer(self, waiter: Waiter, response: Message) -> None:
        self._surroundings.answer_group(waiter, GroupResponse(_encoder.encode(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        self._surroundings.answer_group(waiter, Failed(error, error.message))

    # --- topics

    def partitions_of(self, name: str) -> int:
        topic_id = self._surroundings.metadata.ids.get(name)
        return 0 if topic_id is None else self._surroundings.metadata.topics[topic_id].partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._surroundings.metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        return self._surroundings.metadata.ids.get(name)

    def topics_deleted(self, names: list[str]) -> None:
        self.coordinator.topics_deleted(names)

    # --- our own topic

    def _create_topic(self) -> None:
        configs: dict[str, str | None] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._config.offsets_topic_segment_bytes),
        }
        partitions = self._config.offsets_topic_num_partitions
        topic = CreateTopic(GROUP_TOPIC, partitions, ONE_REPLICA, {}, configs)
        self._surroundings.create_for_groups(CreateTopics([topic], automatic=True))

    def created(self, answer: calls.Message) -> None:
        """If it is there its partitions are read next."""
        problem = str(answer)
        if isinstance(answer, CreatedTopics):
            problem = answer.topics[0].message or ""
            if not answer.topics[0].error:
                return
        log.error("%s cannot be created, consumer groups are unavailable: %s", GROUP_TOPIC, problem)
        held, self._held = self._held, []
        for waiter, _ in held:
            self.fail(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def log_died(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._journal.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.coordinator.unload()
        self._loader = None
        self._topic_id = None

    def _follow_topic(self) -> None:
        """The topic may have come, or gone, since we last looked."""
        topic_id = self._surroundings.metadata.ids.get(GROUP_TOPIC)
        images = None if topic_id is None else self._surroundings.images_of(topic_id)
        if topic_id == self._topic_id and self.coordinator.partitions is not None:
            if images is not None and images is not self._images and self._loader is None:
                self._load_changed(images)
            return
        if topic_id is not None and images is None:
            return
        if self._topic_id is not None:
            log.error("%s is gone, and with it all groups and committed offsets", GROUP_TOPIC)
            self._forget()
        self._topic_id = topic_id
        self._images = images if images is not None else Places()
        self.coordinator.opened(len(self._images))
        if images is not None:
            self._loader = Loader(self.coordinator, self._table, self._config.log_dirs, list(images.values()))

    def _load_changed(self, images: Places) -> None:
        """The log process could open, at last, what it could not."""
        changed = [image for number, image in images.items() if self._images.get(number, image) != image]
        self._images = images
        offline = [image for image in changed if self.coordinator.reopened(image.partition)]
        if offline:
            self._loader = Loader(self.coordinator, self._table, self._config.log_dirs, offline)

    # --- the loop's view

    def step(self, is_serving: bool) -> None:
        """`is_serving`: the log process is there and has opened all topics."""
        if is_serving:
            self._follow_topic()
            if self._loader is not None:
                self._load()
        self.coordinator.tick()
        if is_serving and self._topic_id is not None and self._journal.has_work:
            self._append(self._topic_id)

    def sleep_ms(self, most_ms: int) -> int:
        """How long there is nothing to do for us, at most."""
        if self._loader is not None:
            return min(most_ms, LOAD_RETRY_MS if self._is_stuck else 0)
        deadline_ms = self.coordinator.timers.next_deadline_ms()
        if deadline_ms is None:
            return most_ms
        return max(0, min(most_ms, deadline_ms - clock.monotonic_ms()))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the log. Those who wait for others may wait in vain."""
        return self._journal.is_idle

    def _load(self) -> None:
        assert self._loader is not None
        until = time.monotonic() + LOAD_SECONDS
        self._is_stuck = False
        while not self._loader.done:
            if not self._loader.step():
                self._is_stuck = True
                return
            if time.monotonic() >= until:
                return
        self._loader = None
        gone = {topic for topic in self.coordinator.offsets.topics() if not self.partitions_of(topic)}
        self.coordinator.topics_deleted(gone)
        held, self._held = self._held, []
        for waiter, request in held:
            self.receive(waiter, request)

    def _append(self, topic_id: bytes) -> None:
        batches = self._journal.next_round()
        if batches:
            topic = self._surroundings.metadata.topics[topic_id]
            self._surroundings.append_for_groups(topic, batches, self._journal.finish)
