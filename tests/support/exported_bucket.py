"""A stopped broker's directory with an object store, written here, and a Kafka that goes on with both."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch, metadata_batches
from mpbroker.migration import bucket_export
from mpbroker.migration.bucket_export import Bucket
from mpbroker.migration.from_kafka import import_
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.segment_records import SEGMENTS_TOPIC, metadata_partition, records_of
from mpbroker.protocol.messages import ConfigRecord, Message
from mpbroker.records.batch import checksum
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.manifest import encode_manifest
from mpbroker.remote.ledger.events import SegmentAdded, Started, TopicSet
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage.checkpoints import put_id_and_epochs, write_epochs
from mpbroker.storage.names import partition_name, segment_name
from tests.support.fault_store import MemoryStore
from tests.support.kafka_directory import DIRECTORY_ID, NODE, KafkaDirectory, election, encoded, register

URL = "s3://bucket/some/prefix"
PARTS = IndexSizes(8, 12, 5, 7, 0)


@dataclass
class ExportedBucket:
    """Partition 0 of `orders` has offsets 0 to 5 in the store alone, in two segments, and 6 to 11 here.

    The store is in memory, or the directory.
    """

    path: Path
    memory: MemoryStore = field(default_factory=MemoryStore)
    directory: DirectoryStore | None = None

    def __post_init__(self) -> None:
        self.kafka = KafkaDirectory(self.path).write()
        import_([self.path], is_dry=False)
        self.append(ConfigRecord(2, "orders", "remote.storage.enable", "true"))
        self.home = self.path / partition_name("orders", 0)
        shutil.rmtree(self.home)
        self.home.mkdir()
        self.kafka_partition(6)
        topic = TopicSet("orders", self.topic_id, 2, {"remote.storage.enable": "true"})
        self.started().append([topic, self.put(0, 3), self.put(3, 6)])

    @property
    def store(self) -> ObjectStore:
        return self.directory or self.memory

    @property
    def bucket(self) -> Bucket:
        return Bucket(URL, self.store)

    @property
    def topic_id(self) -> bytes:
        return self.kafka.topic_id("orders")

    def append(self, *records: Message) -> None:
        """Add records to the metadata of a stopped mpbroker, or of a Kafka."""
        base = read_image(self.kafka.metadata).next_offset
        with (self.kafka.metadata / segment_name(0)).open("ab") as file:
            file.write(build_metadata_batch(encoded(*records), 1, base))

    def kafka_partition(self, base: int) -> None:
        """Have the local log of partition 0 begin at `base`."""
        put_id_and_epochs(self.home, self.topic_id, [(0, 0), (3, 5)])
        record = NewRecord(value=b"here", timestamp=1)
        (self.home / segment_name(base)).write_bytes(
            build_batch([record] * 6, base_offset=base, leader_epoch=3)
        )

    def put(
        self, base: int, end: int, *, manifest: bytes | None = None, segment_id: bytes = b""
    ) -> SegmentAdded:
        """Put the objects of a segment into the store; return the event that names them."""
        epochs = tuple((epoch, max(start, base)) for epoch, start in ((0, 0), (3, 5)) if start < end)
        if base >= 5:
            epochs = epochs[1:]
        log, indexes = b"l" * (100 + base), bytes([base]) * sum(PARTS)
        event = SegmentAdded(
            *(self.topic_id, 0, "orders", segment_id or base.to_bytes(16, "big"), base, end, len(log), 1),
            *(epochs, PARTS),
            has_aborted=False,
            log_crc=checksum(log),
            indexes_crc=checksum(indexes),
        )
        names = event.objects
        body = manifest or encode_manifest(
            names,
            end=end,
            size=len(log),
            largest_ms=1,
            epochs=epochs,
            index_sizes=PARTS,
            broker_id=NODE,
            time_ms=1,
        )
        for name, data in ((names.log, log), (names.indexes, indexes), (names.manifest, body)):
            self.store.put(name, [data], len(data))
        return event

    def started(self) -> Ledger:
        """Begin to write the ledger, as a broker that starts on the directory. Raises Fenced."""
        ledger = Ledger(LedgerReader(self.store), OwnerFile(self.path))
        ledger.start(Started(DIRECTORY_ID, NODE, "host"))
        return ledger

    def state(self) -> RemoteState:
        reader = LedgerReader(self.store)
        reader.read_to_end()
        return reader.state

    def bases(self) -> list[int]:
        return [one.base for one in self.state().segments_of(self.topic_id, 0)]

    def start_kafka(self, *values: bytes) -> None:
        """Have Kafka's controller begin, and its tier write more records of segments."""
        end = read_image(self.kafka.metadata).next_offset
        with (self.kafka.metadata / segment_name(0)).open("ab") as file:
            file.write(election(end) + build_metadata_batch([register(NODE)], 1, end + 1, 1))
        number = metadata_partition(self.topic_id, 0, bucket_export.PARTITIONS)
        path = self.path / partition_name(SEGMENTS_TOPIC, number) / segment_name(0)
        batches = metadata_batches(values, 1, base_offset=100)
        with path.open("ab") as file:
            file.writelines(batches)
        write_epochs(self.home, [(0, 0), (3, 5)])

    def copied(
        self, base: int, end: int, *, manifest: bytes | None = None, segment_id: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Copy a segment as Kafka does; return the records of it."""
        return records_of(self.put(base, end, manifest=manifest, segment_id=segment_id), NODE, 5)
