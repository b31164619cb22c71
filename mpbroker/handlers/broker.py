"""What the APIs see of the broker: configuration, metadata, partitions, and whom they can ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.handlers.answers import Answers
from mpbroker.handlers.calls import Caller
from mpbroker.handlers.jobs import Jobs
from mpbroker.handlers.metadata import Metadata, Topic
from mpbroker.handlers.throttling import Throttling
from mpbroker.handlers.waiting import Waiting
from mpbroker.ipc.listeners import AddedListener
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.meters import Meters
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request
from mpbroker.ipc.table import Partition, PartitionFlag, damage_of, read_partition
from mpbroker.protocol.errors import ErrorCode
from shm.clock import monotonic_ms, wall_ms
from shm.counters import CounterPage
from shm.table import SlotBusy, SlotTable
from shm.word import Words

if TYPE_CHECKING:
    from mpbroker.handlers.apis import Api
    from mpbroker.handlers.cold_reads import ColdReads
    from mpbroker.handlers.fetch_sessions import FetchSessionCache
    from mpbroker.handlers.fetches import Fetches
    from mpbroker.handlers.forwarding import Forwarding
    from mpbroker.handlers.readers import Readers
    from mpbroker.handlers.transactions import Transactions
    from mpbroker.log.read.fetch_positions import SegmentPlaces
    from mpbroker.log.read.reader import PartitionReader

ANY_EPOCH = -1


@dataclass
class Broker:
    config: BrokerConfig
    metadata: Metadata
    table: SlotTable
    answers: Answers
    coordinator: Caller
    log: Jobs
    log_calls: list[Caller]  # by number of the log worker
    failed_dirs: Callable[[], int]
    waiting: Waiting
    apis: dict[int, Api]
    fetches: Fetches
    fetch_sessions: FetchSessionCache
    forwarding: Forwarding
    readers: Readers
    cold_reads: ColdReads
    damaged: Words
    places: SegmentPlaces
    producer_ids: ProducerIds
    transactions: Transactions
    counters: CounterPage
    meters: Meters
    tells_all: Callable[[], bool]
    session: Callable[[Request], Session]
    listener: Callable[[int], AddedListener]
    whose: Callable[[Request, Session | None], str]
    throttling: Throttling
    log_levels: LogLevels
    wall_clock_ms: Callable[[], int] = wall_ms
    monotonic_ms: Callable[[], int] = monotonic_ms

    def advertised(self, slot: Request) -> Listener:
        """What the client of this request is told to connect to: advertised.listeners, else the listener's
        address, and of one that listens everywhere the address that the client connected to.
        """
        known = self.listener(slot.listener)
        if known.advertised is not None:
            return known.advertised
        if known.listener.path:
            return structs.replace(known.listener, host=f"unix:{known.listener.path}")
        if known.listener.is_wildcard:
            return structs.replace(known.listener, host=self.session(slot).local_host)
        return known.listener

    def in_table(self, image: PartitionImage) -> Partition | None:
        """None if the slot has another partition, or is written so fast that it cannot be read now. (A log
        worker that dies over it leaves what it said before.)
        """
        try:
            now = read_partition(self.table, image.slot)
        except SlotBusy:
            return None
        return now if now.generation == image.slot_generation else None

    def partition(self, topic: Topic, number: int) -> tuple[PartitionImage, Partition] | ErrorCode:
        """The partition as metadata and table have it, or why it cannot be used."""
        image = topic.partitions.get(number)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now = self.in_table(image)
        if now is None or now.topic_id != topic.topic_id:
            # The table is ahead of the metadata or behind it; the client asks again.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if now.flags & PartitionFlag.PARTITION_OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not now.flags & PartitionFlag.PARTITION_LIVE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return image, now

    def reader(self, topic: Topic, now: Partition) -> PartitionReader:
        """Of a partition, with what is known of its damage. Raises ValueError or OSError if that is not."""
        reader = self.readers.get(topic.name, now)
        word = self.damaged.load(topic.partitions[now.partition].slot)
        reader.heed(damage_of(word, now.generation))
        return reader


def check_leader_epoch(wanted: int, now: Partition) -> ErrorCode | None:
    """What KIP-320 wants to know: -1 is a client that does not care."""
    if wanted == ANY_EPOCH or wanted == now.leader_epoch:
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if wanted < now.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
