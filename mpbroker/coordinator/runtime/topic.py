"""A coordinator's topic: it is created when it is first needed, followed, read, and written in rounds.

If the log process dies nobody knows what became of a round that was under way: whoever waits is told so, and
the partitions are read again, as after a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.runtime.journal import Journal
from mpbroker.coordinator.runtime.loading import Contents, Loader
from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.runtime.surroundings import Surroundings
from mpbroker.coordinator.runtime.timers import Timers
from mpbroker.ipc.calls import (
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    ForwardedRequest,
    Message,
)
from mpbroker.ipc.metadata import PartitionImage, Places
from mpbroker.protocol.errors import ErrorCode
from shm import clock
from shm.table import SlotTable

# How long reading the log may keep everything else waiting, and how soon a partition is looked at again.
LOAD_SECONDS: Final = 0.02
LOAD_RETRY_MS: Final = 20
ONE_REPLICA: Final = 1

log = logging.getLogger("mpbroker")


class Coordinator(Protocol):
    """The state machine whose topic it is. `partitions`: None while that is not known."""

    timers: Timers

    @property
    def partitions(self) -> list[PartitionState] | None: ...

    def opened(self, partitions: int) -> None:
        """The topic has so many partitions, none of which was read yet; 0: it is not there."""

    def reopened(self, partition: int) -> bool:
        """Whether the partition was offline, and is loading now."""

    def unload(self) -> None:
        """What the log says is not known any more: nobody waits, nothing is believed."""

    def tick(self) -> None:
        """Does what is due."""


@dataclass(frozen=True)
class Kind:
    """A topic, as it is created; `held` is what is lost with it, `kept_by` who cannot do without it."""

    name: str
    partitions: int
    segment_bytes: int
    held: str
    kept_by: str


class OwnTopic:
    """`ready` is called when all partitions were read, `receive` for each request that waited for that."""

    def __init__(
        self,
        kind: Kind,
        table: SlotTable,
        log_dirs: tuple[str, ...],
        coordinator: Coordinator,
        contents: Contents,
        journal: Journal[Any],
        surroundings: Surroundings,
        ready: Callable[[], None],
        receive: Callable[[Waiter, ForwardedRequest], None],
        fail: Callable[[Waiter, ErrorCode], None],
    ) -> None:
        self._kind = kind
        self._table = table
        self._log_dirs = log_dirs
        self._coordinator = coordinator
        self._contents = contents
        self._journal = journal
        self._surroundings = surroundings
        self._ready = ready
        self._receive = receive
        self._fail = fail
        self._topic_id: bytes | None = None
        self._images = Places()
        self._loader: Loader | None = None
        self._is_stuck = False
        self._held: list[tuple[Waiter, ForwardedRequest]] = []
        # Outcomes of rounds of a life before `forget` are nobody's.
        self._life = 0

    # --- those who make the first record of all

    @property
    def is_missing(self) -> bool:
        """Whether there is no such topic, for certain."""
        return self._coordinator.partitions == []

    def hold(self, waiter: Waiter, request: ForwardedRequest) -> None:
        """The request waits until there is a topic for it."""
        if not self._held:
            self._create()
        self._held.append((waiter, request))

    def abandon(self, waiter: Waiter) -> None:
        """Whoever made this request is gone; it is still answered, to end it."""
        if any(entry[0] == waiter for entry in self._held):
            self._held = [entry for entry in self._held if entry[0] != waiter]
            self._fail(waiter, ErrorCode.NETWORK_EXCEPTION)

    def abandon_all(self, is_gone: Callable[[Waiter], bool]) -> None:
        self._held = [entry for entry in self._held if not is_gone(entry[0])]

    def _create(self) -> None:
        configs: dict[str, str | None] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._kind.segment_bytes),
        }
        topic = CreateTopic(self._kind.name, self._kind.partitions, ONE_REPLICA, {}, configs)
        self._surroundings.ask(CreateTopics([topic], automatic=True), self._created)

    def _created(self, answer: Message) -> None:
        """If it is there its partitions are read next."""
        problem = str(answer)
        if isinstance(answer, CreatedTopics):
            problem = answer.topics[0].message or ""
            if not answer.topics[0].error:
                return
        log.error(
            "%s cannot be created, %s are unavailable: %s", self._kind.name, self._kind.kept_by, problem
        )
        held, self._held = self._held, []
        for waiter, _ in held:
            self._fail(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- following it

    def forget(self) -> None:
        """The log process died, or the topic is gone."""
        self._life += 1
        self._journal.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._coordinator.unload()
        self._loader = None
        self._topic_id = None

    def _follow(self) -> None:
        """The topic may have come, or gone, since we last looked."""
        topic_id = self._surroundings.metadata.ids.get(self._kind.name)
        images = None if topic_id is None else self._surroundings.images_of(topic_id)
        if topic_id == self._topic_id and self._coordinator.partitions is not None:
            if images is not None and images is not self._images and self._loader is None:
                self._load_changed(images)
            return
        if topic_id is not None and images is None:
            return
        if self._topic_id is not None:
            log.error("%s is gone, and with it all %s", self._kind.name, self._kind.held)
            self.forget()
        self._topic_id = topic_id
        self._images = images if images is not None else Places()
        self._coordinator.opened(len(self._images))
        if images is not None:
            self._begin_loading(list(images.values()))

    def _load_changed(self, images: Places) -> None:
        """The log process could open, at last, what it could not."""
        changed = [image for number, image in images.items() if self._images.get(number, image) != image]
        self._images = images
        offline = [image for image in changed if self._coordinator.reopened(image.partition)]
        if offline:
            self._begin_loading(offline)

    def _begin_loading(self, images: list[PartitionImage]) -> None:
        lost = f"The {self._kind.held} in it are unavailable"
        self._loader = Loader(self._kind.name, lost, self._contents, self._table, self._log_dirs, images)

    # --- the loop's view

    def step(self, is_serving: bool) -> None:
        """`is_serving`: the log process is there and has opened all topics."""
        if is_serving:
            self._follow()
            if self._loader is not None:
                self._load()
        self._coordinator.tick()
        if is_serving and self._topic_id is not None and self._journal.has_work:
            self._append(self._topic_id)

    def sleep_ms(self, most_ms: int) -> int:
        """How long there is nothing to do for us, at most."""
        if self._loader is not None:
            return min(most_ms, LOAD_RETRY_MS if self._is_stuck else 0)
        deadline_ms = self._coordinator.timers.next_deadline_ms()
        if deadline_ms is None:
            return most_ms
        return max(0, min(most_ms, deadline_ms - clock.monotonic_ms()))

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
        self._ready()
        held, self._held = self._held, []
        for waiter, request in held:
            self._receive(waiter, request)

    def _append(self, topic_id: bytes) -> None:
        batches = self._journal.next_round()
        if batches:
            topic, life = self._surroundings.metadata.topics[topic_id], self._life

            def appended(errors: list[ErrorCode]) -> None:
                if life == self._life:
                    self._journal.finish(errors)

            self._surroundings.append_for_us(topic, batches, appended)
