"""Records of `__remote_log_metadata`, as Kafka's own classes write and read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.coordinator.metadata.metadata_records import metadata_batches
from mpbroker.migration.segment_records import (
    CopiedSegment,
    finished_segments,
    in_offset_order,
    metadata_partition,
    records_of,
)
from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.protocol.wire import MalformedMessage
from mpbroker.remote.layout.object_names import SegmentObjects
from tests.support.client_tools import dump
from tests.support.ledger_parts import segment

STARTED, FINISHED = records_of(segment(10), 1, 5)
DELETING, DELETED = (FINISHED[:-2] + bytes([state, 0]) for state in (2, 3))


def copied(base: int, end: int) -> CopiedSegment:
    return CopiedSegment(SegmentObjects("topic", bytes(16), 0, base, bytes(16)), end, 0, ((0, base),), 100)


def bases(*values: bytes) -> list[int]:
    return [one.objects.base for one in finished_segments(values)]


def test_a_segment_is_read_as_it_was_written() -> None:
    one = segment(10, partition=7, topic_id=uuid_bytes("lZ6vvmajTWKDBUTV6SQAtQ"))
    (read,) = finished_segments(records_of(one, 1, 5))
    assert read == (one.objects, one.end, one.largest_ms, one.epochs, one.size)


def test_only_finished_copies_can_be_read_in_the_order_of_their_end() -> None:
    assert bases(STARTED) == []
    assert bases(STARTED, FINISHED) == [10]
    assert bases(STARTED, FINISHED, DELETING) == []
    assert bases(STARTED, FINISHED, DELETING, DELETED) == []
    # A late or repeated update changes nothing, and one of a segment that is gone neither.
    assert bases(STARTED, FINISHED, DELETING, FINISHED, STARTED) == []
    assert bases(FINISHED, DELETED) == []
    first, second = records_of(segment(20), 1, 5)
    assert bases(first, STARTED, FINISHED, second) == [10, 20]


def test_custom_metadata_are_passed_over() -> None:
    with_custom = FINISHED[:-3] + b"\x04abc" + FINISHED[-2:]
    assert bases(STARTED, with_custom) == [10]


@pytest.mark.parametrize(
    "value", [b"", b"\1\2\0", b"\1\0\1", STARTED[:-60], b"\1\1\0\5ab", FINISHED[:-2] + b"\7\0"]
)
def test_what_is_not_known_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMessage, match="a record of __remote_log_metadata cannot be read"):
        bases(STARTED, value)


def test_a_later_copy_replaces_those_within_it() -> None:
    some = [copied(0, 10), copied(10, 20), copied(20, 30)]
    assert in_offset_order(some) == some
    larger = copied(10, 40)
    assert in_offset_order([*some, larger]) == [some[0], larger]
    for overlapping in (copied(25, 40), copied(22, 28)):
        with pytest.raises(ValueError, match="overlap"):
            in_offset_order([*some, overlapping])


@pytest.mark.parametrize(
    ("topic_id", "partition", "count", "expected"),
    [
        ("lZ6vvmajTWKDBUTV6SQAtQ", 0, 50, 9),
        ("lZ6vvmajTWKDBUTV6SQAtQ", 1, 3, 0),
        ("lZ6vvmajTWKDBUTV6SQAtQ", 7, 50, 43),
        ("lZ6vvmajTWKDBUTV6SQAtQ", 1000000, 50, 39),
        ("adh9f8BMS4anaUnD8KWfWg", 0, 50, 19),
        ("adh9f8BMS4anaUnD8KWfWg", 1, 3, 2),
        ("adh9f8BMS4anaUnD8KWfWg", 1000000, 50, 23),
        ("_____________________w", 0, 50, 6),
        ("_____________________w", 1, 3, 1),
        ("_____________________w", 1000000, 50, 42),
        ("AAAAAAAAQACAAAAAAAAADQ", 0, 50, 31),
        ("AAAAAAAAQACAAAAAAAAADQ", 7, 50, 19),
    ],
)
def test_the_partition_is_the_one_where_kafka_looks(
    topic_id: str, partition: int, count: int, expected: int
) -> None:
    """The numbers are what Kafka's RemoteLogMetadataTopicPartitioner returns."""
    assert metadata_partition(uuid_bytes(topic_id), partition, count) == expected


@pytest.mark.clients
def test_kafkas_classes_read_them(tmp_path: Path) -> None:
    """DumpLogSegments decodes with RemoteLogMetadataSerde."""
    one = segment(10)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(metadata_batches(records_of(one, 3, 5), 1)))
    printed = dump("--remote-log-metadata-decoder", "--files", str(path))
    first, second = (line.split("payload: ")[1] for line in printed.splitlines() if "payload: " in line)
    segment_id = (
        "RemoteLogSegmentId{topicIdPartition=AAECAwQFBgcICQoLDA0ODw:topic-0, id=AAAAAAAAAAAAAAAKAAAAAA}"
    )
    assert first == (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment_id}, startOffset=10, endOffset=19, "
        "brokerId=3, maxTimestampMs=10, eventTimestampMs=5, segmentLeaderEpochs={0=10}, "
        "segmentSizeInBytes=1000, customMetadata=Optional.empty, state=COPY_SEGMENT_STARTED, "
        "txnIdxEmpty=true}"
    )
    assert second == (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment_id}, customMetadata=Optional.empty, "
        "state=COPY_SEGMENT_FINISHED, eventTimestampMs=5, brokerId=3}"
    )
