"""A coordinator's topic: created when it is first needed, read when it exists, and written in rounds.

If a log worker dies, the outcome of a round under way is unknown: the callers get an error, and the topic is
read again, as after a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.loading import Contents, Loader
from mpbroker.coordinator.runtime.partitions import TopicPartitions
from mpbroker.coordinator.runtime.requests import Serve, Waiter
from mpbroker.coordinator.runtime.timers import Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.ipc.calls import CreatedTopics, CreateTopic, CreateTopics, Message
from mpbroker.ipc.metadata import PartitionImage, PartitionSlots
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode

# How long reading may delay other work, and how soon a partition is read again.
LOAD_SECONDS: Final = 0.02
LOAD_RETRY_MS: Final = 20
# Clients retry several times a second, and a failed creation costs a round of metadata and a line of the log.
CREATE_RETRY_S: Final = 1.0
ONE_REPLICA: Final = 1

log = logging.getLogger("mpbroker.coordinator")


@dataclass(frozen=True)
class TopicSpec:
    """How a coordinator's topic is created, and how messages to operators name its contents and users.

    `held`: the contents, such as "transactional ids". `kept_by`: the clients that need the topic.
    """

    name: str
    partitions: int
    segment_bytes: int
    held: str
    kept_by: str


class Shard(Protocol):
    """The state machine of a coordinator. It does no I/O, and gets its clock as a parameter."""

    @property
    def served(self) -> Mapping[ApiKey, Serve]:
        """The method that serves each API."""

    @property
    def creators(self) -> Set[ApiKey]:
        """The APIs whose requests cause the creation of the topic. These requests wait until it exists."""

    @property
    def timers(self) -> Timers: ...

    @property
    def partitions(self) -> TopicPartitions: ...

    @property
    def queue(self) -> WriteQueue[Any]: ...

    @property
    def contents(self) -> Contents: ...

    def tick(self) -> None:
        """Run the timers that have expired."""

    def topic_loaded(self) -> None:
        """Finish loading, after the topic was read completely."""

    def unload(self) -> None:
        """Drop the state that was read from the topic, and fail all waiting requests."""

    def abandon(self, waiter: Waiter) -> None:
        """End the wait of a request whose client has disconnected. Do not undo the request's changes."""

    def withdraw(self, waiter: Waiter) -> None:
        """End the wait, if any, of a request that failed. The caller answers the request."""

    def waiters(self) -> list[Waiter]:
        """Return all waiting requests. `abandon` can end the wait of each of them."""


class TopicListener(Protocol):
    def creation_failed(self) -> None: ...

    def topic_loaded(self) -> None:
        """Finish loading, after the topic, or partitions of it that were opened later, have been read."""


class InternalTopic:
    def __init__(self, spec: TopicSpec, host: Host, shard: Shard, listener: TopicListener) -> None:
        self._spec = spec
        self._host = host
        self._shard = shard
        self._listener = listener
        self._topic_id: bytes | None = None
        self._images = PartitionSlots()
        # How many partitions the log workers cannot open yet.
        self._unopened = 0
        self._loader: Loader | None = None
        self._is_stuck = False
        self._create_at = 0.0
        # Counts calls of `unload`: the outcome of a round that began before the last one is void.
        self._life = 0

    def create(self) -> None:
        """Request the topic's creation. If a creation failed less than CREATE_RETRY_S ago, fail at once."""
        if time.monotonic() < self._create_at:
            self._listener.creation_failed()
            return
        configs: dict[str, str | None] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._spec.segment_bytes),
        }
        topic = CreateTopic(self._spec.name, self._spec.partitions, ONE_REPLICA, {}, configs)
        self._host.ask(CreateTopics([topic], automatic=True), self._created)

    def _created(self, answer: Message) -> None:
        problem = str(answer)
        if isinstance(answer, CreatedTopics):
            problem = answer.topics[0].message or ""
            if not answer.topics[0].error:
                return
        log.error(
            "%s cannot be created, %s are unavailable: %s", self._spec.name, self._spec.kept_by, problem
        )
        self._create_at = time.monotonic() + CREATE_RETRY_S
        self._listener.creation_failed()

    # --- following and reading it

    def unload(self) -> None:
        """Drop the state that was read from the topic, because a log worker died or the topic was deleted."""
        self._life += 1
        self._shard.queue.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._shard.unload()
        self._loader = None
        self._unopened = 0
        self._topic_id = None

    def load(self) -> None:
        """Read some more of the topic, for LOAD_SECONDS at most. Call `topic_loaded` after the last piece."""
        self._follow()
        if self._loader is None:
            return
        until = time.monotonic() + LOAD_SECONDS
        self._is_stuck = False
        while not self._loader.done:
            if not self._loader.step():
                self._is_stuck = True
                return
            if time.monotonic() >= until:
                return
        self._loader = None
        self._listener.topic_loaded()

    @property
    def is_loading(self) -> bool:
        return self._loader is not None

    def load_delay_ms(self, most_ms: int) -> int:
        """Return how many ms the caller may wait, at most `most_ms`, before it calls `load` again."""
        return min(most_ms, LOAD_RETRY_MS if self._is_stuck else 0)

    def _follow(self) -> None:
        """Check whether the topic was created or deleted, or partitions were opened, since the last call."""
        topic_id = self._host.metadata.ids.get(self._spec.name)
        images = None if topic_id is None else self._host.images_of(topic_id)
        if topic_id == self._topic_id and self._shard.partitions.states is not None:
            if images is not None and images is not self._images and self._loader is None:
                self._load_changed(images)
            return
        if topic_id is not None and images is None:
            return
        if self._topic_id is not None:
            log.error("%s was deleted, and with it all %s", self._spec.name, self._spec.held)
            self.unload()
        self._topic_id = topic_id
        self._images = images if images is not None else PartitionSlots()
        self._shard.partitions.open(len(self._images))
        if images is not None:
            self._begin_loading(list(images.values()))

    def _load_changed(self, images: PartitionSlots) -> None:
        """Begin to read the partitions that were offline and that, by `images`, are open now."""
        changed = [image for number, image in images.items() if self._images.get(number, image) != image]
        self._images = images
        offline = [image for image in changed if self._shard.partitions.reopen(image.partition)]
        if offline or self._unopened:
            self._begin_loading(offline)

    def _begin_loading(self, images: list[PartitionImage]) -> None:
        """Begin to read these partitions. Those without a slot are read later, by `_load_changed`."""
        for image in images:
            if not image.slot_generation:
                self._shard.contents.fail(image.partition)
        images = [image for image in images if image.slot_generation]
        self._note_unopened()
        lost = f"The {self._spec.held} in it are unavailable"
        table, log_dirs = self._host.table, self._host.log_dirs
        self._loader = Loader(self._spec.name, lost, self._shard.contents, table, log_dirs, images)

    def _note_unopened(self) -> None:
        """Log that some partitions cannot be opened, or that all are open again. Log workers log reasons."""
        before, self._unopened = self._unopened, sum(not one.slot_generation for one in self._images.values())
        if self._unopened and not before:
            log.warning(
                "%d of %d partitions of %s cannot be opened for now: see the log process's line about %s. "
                "The %s in them are unavailable; they are tried again every second",
                self._unopened,
                len(self._images),
                self._spec.name,
                self._spec.name,
                self._spec.held,
            )
        elif before and not self._unopened:
            log.info("all partitions of %s are open", self._spec.name)

    # --- writing it

    def append_round(self) -> None:
        """Append the waiting records as one round, unless a round is under way."""
        queue = self._shard.queue
        if self._topic_id is None or not queue.has_work:
            return
        batches = queue.next_round()
        if not batches:
            return
        life = self._life

        def appended(errors: list[ErrorCode]) -> None:
            if life == self._life:
                queue.finish(errors)

        self._host.append_for_us(self._host.metadata.topics[self._topic_id], batches, appended)
