"""A log directory as a stopped Apache Kafka leaves it, written here: what it says is up to the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.protocol.messages import Message, PartitionRecord, TopicRecord
from mpbroker.protocol.metadata_records import encode_metadata_record
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.checkpoints import put_id_and_epochs
from mpbroker.storage.directory_layout import write_clean_shutdown
from mpbroker.storage.names import (
    META_PROPERTIES,
    METADATA_DIRECTORY,
    QUORUM_STATE,
    partition_name,
    segment_name,
)

NODE = 1
DIRECTORY_ID = "AAAAAAAAQACAAAAAAAAADQ"
REGISTERED = b"\x01\x00\x03\x00\x00\x00"
"""A RegisterBrokerRecord without its last byte of the broker's id, and what follows that."""


def register(broker: int) -> bytes:
    return REGISTERED + bytes([broker])


def election(offset: int) -> bytes:
    """The LeaderChangeMessage with which Kafka's controller begins an epoch."""
    value = b"\x00\x01\x00\x00\x00\x01\x02\x00\x00\x00\x01\x00\x02\x00\x00\x00\x01\x00\x00"
    record = NewRecord(key=b"\x00\x00\x00\x02", value=value, timestamp=1)
    return bytes(build_batch([record], base_offset=offset, leader_epoch=1, control=True))


def encoded(*records: Message) -> list[bytes]:
    versions = {PartitionRecord: 1}
    return [encode_metadata_record(record, versions.get(type(record), 0)) for record in records]


@dataclass
class KafkaDirectory:
    """Topics by name with their replicas: of partition 0, 1, …"""

    path: Path
    topics: dict[str, list[list[int]]] = field(default_factory=lambda: {"orders": [[NODE], [NODE]]})
    more: Sequence[bytes] = ()
    values: list[bytes] = field(default_factory=list)

    @property
    def metadata(self) -> Path:
        return self.path / METADATA_DIRECTORY

    def topic_id(self, name: str) -> bytes:
        return (1000 + list(self.topics).index(name)).to_bytes(16)

    def write(self) -> KafkaDirectory:
        """Write everything, and the mark of a clean stop."""
        self.metadata.mkdir(parents=True)
        properties = f"version=1\ncluster.id={DIRECTORY_ID}\nnode.id={NODE}\ndirectory.id={DIRECTORY_ID}\n"
        (self.path / META_PROPERTIES).write_text(properties)
        (self.metadata / QUORUM_STATE).write_text('{"leaderId":1,"leaderEpoch":1,"data_version":1}')
        self.values = [register(NODE), *self._topics(), *self.more]
        log = election(0) + bytes(build_metadata_batch(self.values, 1, 1, 1))
        (self.metadata / segment_name(0)).write_bytes(log)
        write_clean_shutdown(self.path)
        return self

    def _topics(self) -> list[bytes]:
        records: list[Message] = []
        for name, partitions in self.topics.items():
            topic_id = self.topic_id(name)
            records.append(TopicRecord(name, topic_id))
            for number, replicas in enumerate(partitions):
                records.append(PartitionRecord(number, topic_id, replicas, replicas, leader=replicas[0]))
                self.make_partition(name, number)
        return encoded(*records)

    def make_partition(self, name: str, number: int) -> Path:
        home = self.path / partition_name(name, number)
        home.mkdir()
        put_id_and_epochs(home, self.topic_id(name), [(0, 0), (3, 5)])
        record = NewRecord(value=b"here", timestamp=1)
        batch = build_batch([record] * 6, leader_epoch=0)
        (home / segment_name(0)).write_bytes(batch)
        return home
