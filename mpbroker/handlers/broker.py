"""The broker as the APIs see it: configuration, metadata, partitions, and calls to other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.handlers.calls.forwarding import Forwarding
from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.fetch.disk_prefetch import DiskPrefetch
from mpbroker.handlers.fetch.fetch_sessions import FetchSessionCache
from mpbroker.handlers.fetch.parked_fetches import Fetches
from mpbroker.handlers.fetch.partition_readers import Readers
from mpbroker.handlers.fetch.preferred_replicas import PreferredReplicas
from mpbroker.handlers.fetch.remote_windows import RemoteWindows
from mpbroker.handlers.hot_path.fetch_positions import FetchPositions
from mpbroker.handlers.produce.slow_appends import Jobs
from mpbroker.handlers.produce.transaction_checks import TransactionChecks
from mpbroker.handlers.requests.authorization import Authorization
from mpbroker.handlers.requests.client_metrics import ClientMetricsManager
from mpbroker.handlers.requests.metadata import Metadata, Topic
from mpbroker.handlers.requests.parked_memory import ParkedMemory
from mpbroker.handlers.requests.request import Api, ReceivedRequest
from mpbroker.handlers.requests.response import Services
from mpbroker.handlers.requests.response_backpressure import ResponseBackpressure
from mpbroker.handlers.requests.throttling import Throttling
from mpbroker.ipc.leading import Leading
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition, version_of
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.audit import Audit
from mpbroker.storage.reader import PartitionReader
from shm.clock import monotonic_ms, wall_ms
from shm.table import SlotBusy, SlotTable
from shm.word import Words

ANY_EPOCH = -1


@dataclass(kw_only=True)
class Broker(Services):
    config: BrokerConfig
    metadata: Metadata
    table: SlotTable
    coordinator: PatientClient
    log: Jobs
    log_calls: list[PatientClient]  # by number of the log worker
    failed_dirs: Callable[[], int]
    waiting: ResponseBackpressure
    apis: Mapping[int, Api]
    fetches: Fetches
    fetch_sessions: FetchSessionCache
    forwarding: Forwarding
    parked_memory: ParkedMemory
    readers: Readers
    remote: RemoteWindows
    prefetch: DiskPrefetch
    damaged: Words
    leading: Leading
    fetch_positions: FetchPositions
    preferred: PreferredReplicas
    producer_ids: ProducerIds
    transactions: TransactionChecks
    throttling: Throttling
    authorization: Authorization
    audit: Audit
    log_levels: LogLevels
    client_metrics: ClientMetricsManager
    wall_clock_ms: Callable[[], int] = wall_ms
    monotonic_ms: Callable[[], int] = monotonic_ms

    def advertised(self, request: ReceivedRequest) -> Listener:
        """Return the address that the client of this request is to connect to.

        advertised.listeners may have it. Otherwise it is the listener's own address or, if the listener is on
        all addresses, the address that the client connected to.
        """
        known = self.process.listener(request.slot.listener)
        if known.advertised is not None:
            return known.advertised
        if known.listener.path:
            return structs.replace(known.listener, host=f"unix:{known.listener.path}")
        if known.listener.is_wildcard:
            return structs.replace(known.listener, host=request.session.local_host)
        return known.listener

    def in_table(self, image: PartitionImage) -> Partition | None:
        """Read a partition's slot of the partition table.

        Returns None if the slot has another partition, or changes too fast to be read. (If a log worker dies
        while writing, the slot keeps its earlier content.)
        """
        try:
            now = read_partition(self.table, image.slot)
        except SlotBusy:
            return None
        return now if now.generation == image.slot_generation else None

    def partition(self, topic: Topic, number: int) -> tuple[PartitionImage, Partition] | ErrorCode:
        """Return the partition from metadata and from the table, or the error if it cannot be used."""
        image = topic.partitions.get(number)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now = self.in_table(image)
        if now is None or now.topic_id != topic.topic_id:
            # Table and metadata differ for a moment; the client will retry.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if now.flags & PartitionFlag.PARTITION_OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not now.flags & PartitionFlag.PARTITION_LIVE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return image, now

    def reader(self, topic: Topic, now: Partition) -> PartitionReader:
        """Return the reader of a partition, which avoids its damaged ranges.

        Raises OSError if the partition has no directory, ValueError or OSError if the ranges are not known.
        """
        reader = self.readers.get(topic.name, now)
        word = self.damaged.load(topic.partitions[now.partition].slot)
        reader.load_damages(version_of(word, now.generation))
        return reader


def check_leader_epoch(wanted: int, now: Partition) -> ErrorCode | None:
    """Return the error for a client's leader epoch; None if the epoch is current or ANY_EPOCH (KIP-320)."""
    if wanted == ANY_EPOCH or wanted == now.leader_epoch:
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if wanted < now.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
