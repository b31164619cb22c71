"""kafka-python and aiokafka write what we read and validate, and read what we write; all codecs."""

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from mpbroker.records.arrow_batches import arrow_batches
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from mpbroker.records.validation import TopicPolicy, validate
from tests.support.forms import rounds
from tests.support.record_reading import iterate_records

NOW = 1700000000000
BUILDERS = {"kafka-python": KafkaPythonBuilder, "aiokafka": AiokafkaBuilder}
READERS = {"kafka-python": KafkaPythonRecords, "aiokafka": AiokafkaRecords}

records_of = st.lists(
    st.builds(
        NewRecord,
        value=st.none() | st.binary(max_size=300),
        key=st.none() | st.binary(max_size=30),
        timestamp=st.integers(NOW - 10_000, NOW + 10_000),
        headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=10)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


def built_by(name: str, records: list[NewRecord], codec: Codec) -> bytes:
    builder: Any = BUILDERS[name](
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 20,
    )
    for offset, record in enumerate(records):
        added = builder.append(
            offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
        assert added is not None
    return bytes(builder.build())


def content(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(tuple(h) for h in record.headers)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", list(BUILDERS))
@settings(max_examples=rounds(25), deadline=None)
@given(records=records_of)
def test_their_batches(name: str, codec: Codec, records: list[NewRecord]) -> None:
    data = built_by(name, records, codec)
    accepted = validate(data, TopicPolicy(), now_ms=NOW)
    assert bytes(accepted.data) == data
    assert (accepted.producer_id, accepted.producer_epoch, accepted.base_sequence) == (77, 3, 11)
    expected = [(i, r.timestamp, r.key, r.value, tuple(r.headers)) for i, r in enumerate(records)]
    assert [content(record) for record in iterate_records(data)] == expected
    assert sum(batch.num_rows for batch in arrow_batches(data)) == len(records)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", list(READERS))
@settings(max_examples=rounds(25), deadline=None)
@given(records=records_of)
def test_our_batches(name: str, codec: Codec, records: list[NewRecord]) -> None:
    data = bytes(
        build_batch(records, codec=codec, base_offset=500, producer_id=8, producer_epoch=1, base_sequence=2)
    )
    reader: Any = READERS[name](data)
    assert reader.has_next()
    batch = reader.next_batch()
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (8, 1, 2)
    ours = [content(record) for record in iterate_records(data)]
    assert [content(record) for record in batch] == ours
    assert not reader.has_next()


@pytest.mark.parametrize("name", list(BUILDERS))
def test_uncompressed_batches_are_the_same_bytes(name: str) -> None:
    records = [NewRecord(b"v" * size, b"key", NOW + size) for size in range(100)]
    ours = build_batch(records, producer_id=77, producer_epoch=3, base_sequence=11)
    theirs = built_by(name, records, Codec.NONE)
    (our_batch,), (their_batch,) = list(iterate_batches(ours)), list(iterate_batches(theirs))
    epoch = our_batch.header.leader_epoch
    assert our_batch.header == their_batch.header._replace(leader_epoch=epoch)
    assert bytes(our_batch.bytes[16:]) == bytes(their_batch.bytes[16:])
