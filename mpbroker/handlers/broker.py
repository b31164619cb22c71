"""What the APIs see of the broker: configuration, metadata, partitions, and whom they can ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.handlers.answers import Answers
from mpbroker.handlers.calls import Caller
from mpbroker.handlers.jobs import Jobs
from mpbroker.handlers.metadata import Metadata, Topic
from mpbroker.handlers.throttling import Throttling
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.protocol.errors import ErrorCode
from shm.counters import CounterPage
from shm.table import SlotTable

if TYPE_CHECKING:
    from mpbroker.handlers.apis import Api
    from mpbroker.handlers.fetches import Fetches
    from mpbroker.handlers.producer_ids import ProducerIds
    from mpbroker.handlers.readers import Readers
    from mpbroker.log.places import SegmentPlaces

WILDCARDS = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"
ANY_EPOCH = -1


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@cache
def reachable(host_name: str) -> str:
    """The name of this machine if it resolves at all; a client that cannot look it up would find nobody."""
    try:
        socket.getaddrinfo(host_name, None)
    except OSError:
        return LOOPBACK
    return host_name


@dataclass
class Broker:
    config: BrokerConfig
    metadata: Metadata
    table: SlotTable
    answers: Answers
    coordinator: Caller
    log: Jobs
    apis: dict[int, Api]
    fetches: Fetches
    readers: Readers
    places: SegmentPlaces
    producer_ids: ProducerIds
    counters: CounterPage
    session: Callable[[Request], Session]
    throttling: Throttling
    wall_clock_ms: Callable[[], int] = wall_clock_ms
    monotonic_ms: Callable[[], int] = monotonic_ms
    host_name: str = field(default_factory=socket.gethostname)

    def advertised(self, listener: int) -> Listener:
        """The address that clients of the listener with this number are told to connect to."""
        bound = self.config.listeners[listener]
        for advertised in self.config.advertised_listeners or ():
            if advertised.name == bound.name:
                bound = advertised
        host = reachable(self.host_name) if bound.host in WILDCARDS else bound.host
        return Listener(bound.name, bound.protocol, host, bound.port)

    def partition(self, topic: Topic, number: int) -> tuple[PartitionImage, Partition] | ErrorCode:
        """The partition as metadata and table have it, or why it cannot be used."""
        image = topic.partitions.get(number)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now = read_partition(self.table, image.slot)
        if now.generation != image.slot_generation or now.topic_id != topic.topic_id:
            # The table is ahead of the metadata or behind it; the client asks again.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if now.flags & PartitionFlag.PARTITION_OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not now.flags & PartitionFlag.PARTITION_LIVE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return image, now


def check_leader_epoch(wanted: int, now: Partition) -> ErrorCode | None:
    """What KIP-320 wants to know: -1 is a client that does not care."""
    if wanted == ANY_EPOCH or wanted == now.leader_epoch:
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if wanted < now.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
