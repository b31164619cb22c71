"""Records of the metadata log: Kafka's framing, and refusals of what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.metadata.metadata_records import (
    KeptRecord,
    MetadataRecord,
    UnreadableMetadata,
    build_metadata_batch,
    decode_record,
    encode_record,
)
from mpbroker.protocol.messages import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from mpbroker.records.iterate import iterate_batches

ID = bytes(range(16))
RECORDS: list[MetadataRecord] = [
    TopicRecord("orders", ID),
    ConfigRecord(2, "orders", "retention.ms", "1000"),
    ConfigRecord(2, "orders", "retention.ms", None),
    PartitionRecord(0, ID, [1], [1], leader=1, leader_epoch=0, partition_epoch=0, directories=[bytes(16)]),
    RemoveTopicRecord(ID),
    ProducerIdsRecord(1, -1, 1000),
]


def test_a_topic_record_byte_by_byte() -> None:
    """Compare bytes: frame version 1, type 2, version 0; compact string, id, no tagged fields."""
    assert encode_record(TopicRecord("foo", ID)) == b"\x01\x02\x00" + b"\x04foo" + ID + b"\x00"


def test_a_partition_record_has_directories() -> None:
    value = encode_record(RECORDS[3])
    assert value[:3] == b"\x01\x03\x01"
    assert value.endswith(b"\x02" + bytes(16) + b"\x00")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


def test_a_batch_is_one_step() -> None:
    (batch,) = iterate_batches(build_metadata_batch([encode_record(r) for r in RECORDS], 5, base_offset=7))
    assert batch.header.base_offset == 7
    assert batch.last_offset == 7 + len(RECORDS) - 1
    found = batch.records()
    assert [decode_record(record.value or b"") for record in found] == RECORDS
    assert {(record.key, record.timestamp) for record in found} == {(None, 5)}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "cut off"),
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x02\x09", "type 2, version 9"),
        (encode_record(TopicRecord("foo", ID)) + b"\0", "1 bytes too many"),
    ],
)
def test_what_is_no_record_is_refused(value: bytes, says: str) -> None:
    with pytest.raises(UnreadableMetadata, match=says):
        decode_record(value)


@pytest.mark.parametrize(("value", "kind"), [(b"\x01\x63\x00", 99), (b"\x01\x14\x00\x00", 20)])
def test_a_record_of_an_unknown_type_is_kept(value: bytes, kind: int) -> None:
    assert decode_record(value) == KeptRecord(kind)


@given(st.sampled_from(RECORDS), st.data())
def test_every_truncation_is_refused(record: MetadataRecord, data: st.DataObject) -> None:
    value = encode_record(record)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(UnreadableMetadata):
        decode_record(value[:cut])
