"""Batches are written once and in order, whatever happens on the way; or the caller hears what did not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ApiFailed, ClientConfigError, ConnectionLost, RequestTimedOut
from mpbroker.client.producer import Producer
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from tests.support.fake_broker import FakeBroker
from tests.support.forms import rounds

TOPIC = "t"
FAST = {
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
}


@contextmanager
def producing(
    broker: FakeBroker,
    acks: int = -1,
    delivery_timeout_ms: float = 20_000,
    codec: Codec = Codec.NONE,
    **more: int,
) -> Iterator[tuple[Producer, list[str]]]:
    """A producer that knows the topic, and what it complained of."""
    cluster = Cluster([("127.0.0.1", broker.port)], ClientConfig(**{**FAST, **more}))
    complaints: list[str] = []
    try:
        cluster.refresh([TOPIC])
        producer = Producer(
            cluster,
            acks=acks,
            codec=codec,
            delivery_timeout_ms=delivery_timeout_ms,
            trouble=complaints.append,
        )
        yield producer, complaints
    finally:
        cluster.close()


def append(producer: Producer, numbers: range, partition: int = 0) -> None:
    producer.append(
        TOPIC, partition, [NewRecord(value=b"%d" % number, key=None, timestamp=0) for number in numbers]
    )


def written(broker: FakeBroker, partition: int = 0) -> list[int]:
    log = broker.topics[TOPIC][partition]
    return [int(record.value or b"") for batch in iterate_batches(log) for record in batch.records()]


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics[TOPIC] = [bytearray(), bytearray()]
        yield broker


def test_batches_of_several_partitions(fake: FakeBroker) -> None:
    with producing(fake) as (producer, complaints):
        for start in range(0, 200, 10):
            append(producer, range(start, start + 10), partition=start // 10 % 2)
        assert not producer.idle
        producer.flush()
        assert (producer.idle, producer.has_room, producer.acknowledged, complaints) == (True, True, 200, [])
    assert sorted(written(fake, 0) + written(fake, 1)) == [*range(200)]
    assert written(fake, 0) == sorted(written(fake, 0))


FAULTS = st.lists(st.sampled_from(["", "", "", "hang up", "swallow"]), max_size=12)
REFUSALS = st.lists(
    st.sampled_from(
        [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
    ),
    max_size=12,
)


@settings(max_examples=rounds(40), deadline=None)
@given(FAULTS, REFUSALS)
def test_once_and_in_order_whatever_happens(faults: list[str], refusals: list[ErrorCode]) -> None:
    with FakeBroker() as broker:
        broker.topics[TOPIC] = [bytearray(), bytearray()]
        broker.faults[ApiKey.PRODUCE] = [*faults]
        broker.refuse[ApiKey.PRODUCE] = [*refusals]
        with producing(broker) as (producer, complaints):
            for start in range(0, 90, 10):
                append(producer, range(start, start + 10))
                append(producer, range(start, start + 10), partition=1)
            producer.flush()
        assert written(broker) == written(broker, 1) == [*range(90)]
        assert all(complaint.endswith("; trying again") for complaint in complaints)


def test_an_answer_that_has_gone_missing_is_not_a_loss_of_order(fake: FakeBroker) -> None:
    """The first of five is refused: the four behind it come too early, and all go again."""
    fake.refuse[ApiKey.PRODUCE] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with producing(fake) as (producer, complaints):
        for start in range(5):
            append(producer, range(start, start + 1))
        producer.flush()
    assert written(fake) == [*range(5)]
    (complaint,) = complaints
    assert "NOT_LEADER_OR_FOLLOWER" in complaint


def test_a_final_refusal_is_an_error(fake: FakeBroker) -> None:
    fake.refuse[ApiKey.PRODUCE] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with producing(fake) as (producer, _):
        append(producer, range(1))
        with pytest.raises(ApiFailed, match=r"partition t-0: .*\(TOPIC_AUTHORIZATION_FAILED\)"):
            producer.flush()


def test_a_gap_in_front_of_the_first_batch_is_an_error(fake: FakeBroker) -> None:
    """Then the log has lost what it had acknowledged: going on would hide it."""
    with producing(fake) as (producer, _):
        append(producer, range(3))
        producer.flush()
        fake.next_sequence.clear()
        append(producer, range(3, 6))
        with pytest.raises(ApiFailed, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
            producer.flush()


@pytest.mark.parametrize("fault", ["hang up", "swallow"])
def test_without_an_id_a_lost_connection_is_an_error(fake: FakeBroker, fault: str) -> None:
    """Written or not, nobody knows; a second copy could not be told from the first."""
    fake.faults[ApiKey.PRODUCE] = [fault]
    with producing(fake, acks=1) as (producer, _):
        append(producer, range(1))
        with pytest.raises(ConnectionLost, match="closed by the broker"):
            producer.flush()
        assert producer.acknowledged == 0
    assert [key for key, _ in fake.requests].count(ApiKey.PRODUCE) == 1


def test_without_an_id_there_is_one_batch_in_flight(fake: FakeBroker) -> None:
    fake.refuse[ApiKey.PRODUCE] = [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with producing(fake, acks=1) as (producer, _):
        for start in range(5):
            append(producer, range(start, start + 1))
        producer.flush()
    assert written(fake) == [*range(5)]


def test_no_acks(fake: FakeBroker) -> None:
    with producing(fake, acks=0) as (producer, _):
        append(producer, range(3))
        producer.flush()
        assert producer.acknowledged == 3
    fake.wait_for(ApiKey.PRODUCE)


def test_a_broker_that_stays_away(fake: FakeBroker) -> None:
    # Long enough for a first try on a machine that is busy.
    with producing(fake, delivery_timeout_ms=2_000) as (producer, complaints):
        fake.close_listener()
        fake.faults[ApiKey.PRODUCE] = ["hang up"] * 100
        append(producer, range(1))
        with pytest.raises(
            RequestTimedOut, match=r"partition t-0: not written within 2 s .*cannot connect to"
        ):
            producer.flush()
        assert complaints
        assert len(complaints) < 10, "each kind of trouble is told once"


def test_more_in_flight_than_a_broker_remembers(fake: FakeBroker) -> None:
    too_many = producing(fake, max_in_flight_requests_per_connection=6)
    with pytest.raises(ClientConfigError, match="the most is 5"), too_many:
        raise AssertionError("not reached")


SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=40)


@settings(max_examples=rounds(40), deadline=None)
@given(SIZES, st.integers(1, 20), st.sampled_from([-1, 1]), st.sampled_from([Codec.NONE, Codec.GZIP]), FAULTS)
def test_what_the_topic_finds_too_large_is_split(
    sizes: list[int], at_once: int, acks: int, codec: Codec, faults: list[str]
) -> None:
    records = [NewRecord(value=b"%d " % size + bytes(size), key=b"k", timestamp=size) for size in sizes]
    with FakeBroker() as broker:
        broker.topics[TOPIC] = [bytearray(), bytearray()]
        broker.max_message_bytes = 600
        broker.faults[ApiKey.PRODUCE] = [*faults] if acks == -1 else []
        with producing(broker, acks=acks, codec=codec) as (producer, complaints):
            for start in range(0, len(records), at_once):
                for partition in (0, 1):
                    producer.append(TOPIC, partition, records[start : start + at_once])
            producer.flush()
            assert producer.has_room
            assert producer.acknowledged == 2 * len(records)
            assert not [text for text in complaints if "OUT_OF_ORDER" in text]
        for log in broker.topics[TOPIC]:
            found = [one for batch in iterate_batches(log) for one in batch.records()]
            assert [(one.value, one.key, one.timestamp) for one in found] == [
                (one.value, one.key, one.timestamp) for one in records
            ]


def test_a_refused_size_is_not_tried_again(fake: FakeBroker) -> None:
    """Ten records fit where forty do not: the next forty come in tens at once."""
    fake.max_message_bytes = 1200
    records = [NewRecord(value=bytes(100), timestamp=0)] * 40
    with producing(fake) as (producer, _):
        producer.append(TOPIC, 0, records)
        producer.flush()
        before = [key for key, _ in fake.requests].count(ApiKey.PRODUCE)
        producer.append(TOPIC, 0, records)
        producer.flush()
        assert [key for key, _ in fake.requests].count(ApiKey.PRODUCE) == before + 4


@pytest.mark.parametrize(
    ("key", "told"), [(None, "that begins with 'aaaa"), (b"order-7", "with key 'order-7' takes")]
)
def test_a_record_that_is_too_large_is_named(fake: FakeBroker, key: bytes | None, told: str) -> None:
    fake.max_message_bytes = 600
    large = NewRecord(value=b"a" * 700, key=key, timestamp=0)
    with producing(fake) as (producer, _):
        producer.append(
            TOPIC, 0, [NewRecord(value=b"1", timestamp=0), large, NewRecord(value=b"2", timestamp=0)]
        )
        with pytest.raises(ApiFailed, match=rf"partition t-0: the record {told}.* max.message.bytes \(MESS"):
            producer.flush()
        assert producer.acknowledged == 1
    assert written(fake) == [1]
