"""Snapshots of metadata for Apache Kafka's controllers, and the file `bootstrap.checkpoint`.

(Kafka: RecordsSnapshotWriter, SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord,
BootstrapDirectory; KIP-630, KIP-853.)

    control batch: header, version of KRaft, voters | batches of records | control batch: footer
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from mpbroker.coordinator.metadata.metadata_records import metadata_batches
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.protocol.messages import (
    ConfigRecord,
    FeatureLevelRecord,
    Message,
    ProducerIdsRecord,
    TopicRecord,
)
from mpbroker.protocol.metadata_records import encode_metadata_record
from mpbroker.protocol.wire import uvarint
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

_KEY: Final = struct.Struct(">hh")
_NO_TAGS: Final = b"\0"
_PARTITION_VERSION: Final = 1


class ControlRecord(IntEnum):
    """Types of control records that only metadata logs and snapshots have (Kafka: ControlRecordType)."""

    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Voter(NamedTuple):
    """The only controller: its node id, the id of its metadata directory, and its listener."""

    node_id: int
    directory_id: bytes
    listener: str
    host: str
    port: int


def control_key(kind: ControlRecord) -> bytes:
    """Return the encoded key (version 0) of a control record."""
    return _KEY.pack(0, kind)


def snapshot(image: ClusterImage, voter: Voter, timestamp_ms: int) -> bytes:
    """Return the snapshot of an image. Its quorum has one controller and can grow (kraft.version 1)."""
    records = [encode_metadata_record(record, version) for record, version in _records_of(image)]
    first = (
        (ControlRecord.SNAPSHOT_HEADER, struct.pack(">hq", 0, timestamp_ms) + _NO_TAGS),
        (ControlRecord.KRAFT_VERSION, struct.pack(">hh", 0, 1) + _NO_TAGS),
        (ControlRecord.KRAFT_VOTERS, _voters(voter)),
    )
    return _file(first, records, image.epoch, timestamp_ms)


def bootstrap(features: dict[str, int], timestamp_ms: int) -> bytes:
    """Return the content of a formatted node's `bootstrap.checkpoint` (Kafka: BootstrapDirectory)."""
    records = [
        encode_metadata_record(FeatureLevelRecord(name=name, feature_level=level), 0)
        for name, level in features.items()
    ]
    header = ControlRecord.SNAPSHOT_HEADER, struct.pack(">hq", 0, 0) + _NO_TAGS
    return _file([header], records, 0, timestamp_ms)


def _file(
    first: Sequence[tuple[ControlRecord, bytes]], records: Sequence[bytes], epoch: int, timestamp_ms: int
) -> bytes:
    pieces = [_control(first, 0, epoch, timestamp_ms)]
    pieces += metadata_batches(records, timestamp_ms, len(first), epoch)
    footer = ControlRecord.SNAPSHOT_FOOTER, struct.pack(">h", 0) + _NO_TAGS
    pieces.append(_control([footer], len(first) + len(records), epoch, timestamp_ms))
    return b"".join(pieces)


def _control(
    records: Iterable[tuple[ControlRecord, bytes]], offset: int, epoch: int, timestamp_ms: int
) -> bytearray:
    new = [NewRecord(key=control_key(kind), value=value, timestamp=timestamp_ms) for kind, value in records]
    return build_batch(new, base_offset=offset, leader_epoch=epoch, control=True)


def _voters(voter: Voter) -> bytes:
    """Return the encoded value (version 0) of a VotersRecord."""
    endpoint = _text(voter.listener) + _text(voter.host) + struct.pack(">H", voter.port) + _NO_TAGS
    one = struct.pack(">i", voter.node_id) + voter.directory_id + uvarint(2) + endpoint
    one += struct.pack(">hh", 0, 1) + _NO_TAGS + _NO_TAGS
    return struct.pack(">h", 0) + uvarint(2) + one + _NO_TAGS


def _text(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _records_of(image: ClusterImage) -> Iterator[tuple[Message, int]]:
    """Yield (record, version) pairs from which the image can be rebuilt (Kafka: MetadataImage.write)."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level), 0
    for topic_id, name in image.topics.items():
        yield TopicRecord(name=name, topic_id=topic_id), 0
        for _, partition in sorted(image.partitions[topic_id].items()):
            yield partition, _PARTITION_VERSION
    for (kind, resource), configs in image.configs.items():
        for name, value in configs.items():
            yield ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value), 0
    for table in (image.quotas, image.credentials, image.acls, image.tokens):
        for record in table.values():
            yield record, 0
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id), 0
