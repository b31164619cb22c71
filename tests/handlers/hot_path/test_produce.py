"""The native turn and the slow path agree on each Produce request: same jobs, same bytes in the answer."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpbroker.ipc.calls import CheckTransaction
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.batch import BATCH_HEADER_BYTES, correct_max_timestamp
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec, compress
from mpbroker.records.record import NewRecord
from mpbroker.records.validation import MAX_LONG
from tests.support.forms import rounds
from tests.support.handler_rig import (
    PROCESSOR,
    Rig,
    partition_payload,
    request_frame,
    rig,
    topic_id,
    topic_image,
)

PRODUCE = 0
VERSIONS = range(3, 14)
TOPICS = (
    topic_image("plain", 1, partitions=3, first_slot=0),
    topic_image("stamped", 2, first_slot=3, message_timestamp_type="LogAppendTime"),
    topic_image("keyed", 3, first_slot=4, cleanup_policy="compact"),
    topic_image("small", 4, first_slot=5, max_message_bytes="200"),
    topic_image("zipped", 5, first_slot=6, compression_type="gzip"),
    topic_image("late", 6, first_slot=7, message_timestamp_before_max_ms="1000"),
    topic_image("__consumer_offsets", 7, first_slot=8, internal=True),
)
IDS = {t.name: t.topic_id for t in TOPICS}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def records(count: int = 1, size: int = 10, key: bytes | None = b"k", age_ms: int = 0) -> list[NewRecord]:
    return [NewRecord(key=key, value=bytes(size), timestamp=now_ms() - age_ms + i) for i in range(count)]


def bad_stream(codec: Codec) -> bytes:
    batch = build_batch(records(), codec=codec)
    batch[-8] ^= 0xFF
    correct_max_timestamp(batch, now_ms())  # mends the CRC
    return bytes(batch)


def wrong_max_timestamp(codec: Codec = Codec.NONE) -> bytes:
    batch = build_batch(records(3), codec=codec)
    correct_max_timestamp(batch, now_ms() + 1000)
    return bytes(batch)


def latest(codec: Codec = Codec.NONE) -> bytes:
    """A batch whose records have the largest timestamp that there is."""
    return bytes(build_batch([NewRecord(key=b"k", value=b"v", timestamp=MAX_LONG)] * 2, codec=codec))


def broken(at: int, value: int) -> bytes:
    batch = build_batch(records())
    batch[at] ^= value
    return bytes(batch)


BATCHES: dict[str, Callable[[], bytes | None]] = {
    "one": lambda: bytes(build_batch(records())),
    "many": lambda: bytes(build_batch(records(20))),
    "idempotent": lambda: bytes(build_batch(records(2), producer_id=9, producer_epoch=1, base_sequence=4)),
    "wrong max timestamp": wrong_max_timestamp,
    "no timestamp": lambda: bytes(build_batch([NewRecord(key=b"k", value=b"v", timestamp=-1)])),
    "large": lambda: bytes(build_batch(records(1, 5000))),
    "no key": lambda: bytes(build_batch(records(key=None))),
    "old": lambda: bytes(build_batch(records(age_ms=5000))),
    "future": lambda: bytes(build_batch(records(age_ms=-7_200_000))),
    "latest": lambda: latest(),
    "latest lz4": lambda: latest(Codec.LZ4),
    "gzip": lambda: bytes(build_batch(records(5), codec=Codec.GZIP)),
    "snappy": lambda: bytes(build_batch(records(5, 1000), codec=Codec.SNAPPY)),
    "lz4": lambda: bytes(build_batch(records(5, 1000), codec=Codec.LZ4)),
    "zstd": lambda: bytes(build_batch(records(5, 1000), codec=Codec.ZSTD)),
    "gzip without keys": lambda: bytes(build_batch(records(key=None), codec=Codec.GZIP)),
    "old lz4": lambda: bytes(build_batch(records(age_ms=5000), codec=Codec.LZ4)),
    "lz4 with wrong max timestamp": lambda: wrong_max_timestamp(Codec.LZ4),
    "bad lz4": lambda: bad_stream(Codec.LZ4),
    "transactional": lambda: bytes(
        build_batch(records(), producer_id=9, producer_epoch=1, base_sequence=4, transactional=True)
    ),
    "bad crc": lambda: broken(70, 1),
    "bad magic": lambda: broken(16, 1),
    "cut": lambda: bytes(build_batch(records()))[:-1],
    "two": lambda: bytes(build_batch(records())) * 2,
    "trailing": lambda: bytes(build_batch(records())) + b"\0" * 5,
    "empty": lambda: b"",
    "null": lambda: None,
}


@dataclass
class Case:
    """topic -> [(partition, name of a batch)]"""

    topics: dict[str, list[tuple[int, str]]]
    acks: int = -1
    version: int = 7
    room: int = 2048
    built: ProduceRequest = field(init=False)

    def __post_init__(self) -> None:
        self.built = ProduceRequest(
            acks=self.acks,
            timeout_ms=1234,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name,
                    topic_id=IDS.get(name, topic_id(99)),
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index, BATCHES[batch]())
                        for index, batch in partitions
                    ],
                )
                for name, partitions in self.topics.items()
            ],
        )

    def frame(self) -> bytes:
        return request_frame(PRODUCE, self.version, self.built)


Seen = tuple[str, bytes | None, list[tuple[object, ...]]]


# A connection for each case: one that is closed is served no more.
CONNECTIONS = itertools.count(1)


def produce(rig: Rig, case: Case, native: bool) -> Seen:
    """(how it was served, the answer's bytes, what was appended)"""
    rig.log.next_offset = 1000
    rig.handler.turn.log_is_up, rig.handler.fenced_logs = native, set() if native else {0}
    rig.processor.send(case.frame(), room=case.room, connection=next(CONNECTIONS))
    rig.turn()
    while rig.handler.scheduler.has_work():
        rig.turn()
    jobs = rig.log.take()
    assert len(jobs) <= 1
    appended: list[tuple[object, ...]] = []
    answer = None
    for job in jobs:
        assert (job.acks, job.timeout_ms, job.processor) == (case.acks, 1234, PROCESSOR)
        for batch in rig.log.batches(job):
            kept = batch._asdict()
            for place in ("data", "data_owner", "hole", "has_log_start"):
                del kept[place]
            appended.append((*kept.values(), bytes(rig.log.data_of(job, batch))))
        answer = rig.log.append(job)
        if case.acks == 0:
            answer = None
    if jobs and jobs[0].kind == SlotKind.PRODUCE:
        assert not rig.processor.replies()
        return "native", answer, appended
    rig.turn()
    (reply,) = rig.processor.replies()
    if reply.kind == SlotKind.SEND:
        return "slow", rig.processor.frame_of(reply), appended
    return SlotKind(reply.kind).name, None, appended


def both(rig: Rig, case: Case) -> tuple[Seen, Seen]:
    return produce(rig, case, native=True), produce(rig, case, native=False)


READY = TOPICS


COMMON = [
    ("plain", "one"),
    ("plain", "many"),
    ("plain", "idempotent"),
    ("plain", "wrong max timestamp"),
    ("plain", "no timestamp"),
    ("plain", "large"),
    ("stamped", "one"),
    ("stamped", "old"),
    ("keyed", "one"),
    ("late", "one"),
    ("plain", "gzip"),
    ("plain", "snappy"),
    ("plain", "lz4"),
    ("plain", "lz4 with wrong max timestamp"),
    ("plain", "gzip without keys"),
    ("stamped", "old lz4"),
    ("keyed", "snappy"),
    ("zipped", "gzip"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("topic", "batch"), COMMON)
def test_common_requests_are_native_and_the_same(ready: Rig, topic: str, batch: str, version: int) -> None:
    native, slow = both(ready, Case({topic: [(0, batch)]}, version=version))
    assert native[0] == "native"
    assert slow[0] == "slow"
    assert native[1:] == slow[1:]
    _, response = decode_response_frame(PRODUCE, version, native[1][4:])  # type: ignore[index]
    (partition,) = response.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset) == (0, 1000)


@pytest.mark.parametrize("version", VERSIONS)
def test_several_topics_and_partitions(ready: Rig, version: int) -> None:
    case = Case(
        {"plain": [(2, "one"), (0, "many"), (1, "idempotent")], "keyed": [(0, "one")]},
        version=version,
        acks=1,
    )
    native, slow = both(ready, case)
    assert native[0] == "native"
    assert native[1:] == slow[1:]
    assert len(native[2]) == 4


@pytest.mark.parametrize("version", [3, 5, 8, 12, 13])
@pytest.mark.parametrize(
    ("topic", "partition", "batch", "error"),
    [
        ("plain", 3, "one", 3),
        ("plain", -1, "one", 3),
        ("keyed", 0, "no key", 87),
        ("small", 0, "large", 10),
        ("late", 0, "old", 32),
        ("plain", 0, "future", 32),
        ("plain", 0, "latest", 32),
        ("plain", 0, "latest lz4", 32),
        ("plain", 0, "bad crc", 2),
        ("plain", 0, "bad magic", 2),
        ("plain", 0, "cut", 87),
        ("plain", 0, "two", 87),
        ("plain", 0, "empty", 87),
        ("plain", 0, "null", 87),
        ("__consumer_offsets", 0, "one", 17),
    ],
)
def test_errors_are_for_the_slow_path(
    ready: Rig, topic: str, partition: int, batch: str, error: int, version: int
) -> None:
    if batch == "bad magic":
        error = 2 if BATCHES[batch]()[16] > 2 else 87  # type: ignore[index]
    for native in (True, False):
        how, frame, appended = produce(ready, Case({topic: [(partition, batch)]}, version=version), native)
        assert (how, appended) == ("slow", [])
        _, response = decode_response_frame(PRODUCE, version, frame[4:])  # type: ignore[index]
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (error, -1)
        if batch == "no key" and version >= 8:
            assert [e.batch_index for e in answer.record_errors] == [0]


@pytest.mark.parametrize("version", [4, 5, 13])
@pytest.mark.parametrize(
    ("topic", "batch", "told"),
    [
        ("keyed", "no key", 7),
        ("late", "old", 7),
        ("plain", "cut", 7),
        ("plain", "bad crc", -1),
        ("small", "large", -1),
    ],
)
def test_where_the_log_starts_is_told_with_bad_records(
    ready: Rig, topic: str, batch: str, told: int, version: int
) -> None:
    image = next(t for t in TOPICS if t.name == topic)
    slot = image.partitions[0].slot
    ready.table.write(slot, partition_payload(image, 0, log_start_offset=7))
    _, frame, _ = produce(ready, Case({topic: [(0, batch)]}, version=version), native=True)
    _, response = decode_response_frame(PRODUCE, version, frame[4:])  # type: ignore[index]
    (answer,) = response.responses[0].partition_responses
    assert answer.log_start_offset == (told if version >= 5 else -1)


@pytest.mark.parametrize("version", [12, 13])
def test_an_unknown_topic(ready: Rig, version: int) -> None:
    how, frame, _ = produce(ready, Case({"nowhere": [(0, "one")]}, version=version), native=True)
    _, response = decode_response_frame(PRODUCE, version, frame[4:])  # type: ignore[index]
    assert how == "slow"
    assert response.responses[0].partition_responses[0].error_code == (100 if version == 13 else 3)


def test_a_bad_partition_does_not_harm_its_neighbour(ready: Rig) -> None:
    how, frame, appended = produce(ready, Case({"plain": [(0, "bad crc"), (1, "one")]}), native=True)
    _, response = decode_response_frame(PRODUCE, 7, frame[4:])  # type: ignore[index]
    assert how == "slow"
    assert [(p.index, p.error_code) for p in response.responses[0].partition_responses] == [(0, 2), (1, 0)]
    assert len(appended) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_zstd_is_native_from_the_version_on_that_has_it(ready: Rig, version: int) -> None:
    native, slow = both(ready, Case({"plain": [(0, "zstd")]}, version=version))
    assert native[0] == ("native" if version >= 7 else "slow")
    assert native[1:] == slow[1:]


@pytest.mark.parametrize(
    ("topic", "batch"),
    [
        ("zipped", "one"),
        ("zipped", "lz4"),
        ("keyed", "gzip without keys"),
        ("late", "old lz4"),
        ("plain", "bad lz4"),
    ],
)
def test_compressed_batches_for_the_slow_path(ready: Rig, topic: str, batch: str) -> None:
    native, slow = both(ready, Case({topic: [(0, batch)]}))
    assert native[0] == slow[0] == "slow"
    assert native[1:] == slow[1:]


@pytest.mark.parametrize("batch", ["trailing"])
def test_what_needs_more_work_is_appended_by_the_slow_path(ready: Rig, batch: str) -> None:
    how, _, appended = produce(ready, Case({"plain": [(0, batch)]}), native=True)
    assert how == "slow"
    assert len(appended) == 1


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(Codec.GZIP, "1", "9"), (Codec.LZ4, "1", "17"), (Codec.ZSTD, "-50", "19")]
)
def test_what_is_compressed_anew_gets_the_level_of_the_topic(
    rig: Rig, codec: Codec, low: str, high: str
) -> None:
    name = codec.name.lower()
    settings = [{"compression_type": name, f"compression_{name}_level": level} for level in (low, high)]
    rig.publish(*(topic_image(f"t{n}", n, first_slot=n, **one) for n, one in enumerate(settings, 1)))
    text = b" ".join(b"%d" % (n * n) for n in range(2_000))
    batch = bytes(build_batch([NewRecord(key=b"k", value=text, timestamp=now_ms())]))
    for number, level in ((1, low), (2, high)):
        case = Case({f"t{number}": [(0, "one")]})
        case.built.topic_data[0].partition_data[0].records = batch
        how, _, appended = produce(rig, case, native=True)
        assert how == "slow"
        expected = compress(codec, memoryview(batch)[BATCH_HEADER_BYTES:], int(level))
        assert appended[0][-1][BATCH_HEADER_BYTES:] == bytes(expected)  # type: ignore[index]
    low_bytes, high_bytes = (
        len(bytes(compress(codec, memoryview(batch)[BATCH_HEADER_BYTES:], int(level))))
        for level in (low, high)
    )
    assert high_bytes < low_bytes


def test_too_little_room_for_the_answer_is_for_the_slow_path(ready: Rig) -> None:
    # The smallest block has 1984 bytes: a frame that fills it leaves nothing.
    case = Case({"plain": [(0, "large")]}, room=0)
    how, _, appended = produce(ready, case, native=True)
    assert len(appended) == 1
    assert how == ("slow" if len(case.frame()) % 4096 > 3900 else "native")


def test_acks_of_zero(ready: Rig) -> None:
    assert produce(ready, Case({"plain": [(0, "one")]}, acks=0), native=True)[0] == "native"
    assert produce(ready, Case({"plain": [(0, "one")]}, acks=0), native=False)[0] == "NOOP"
    assert produce(ready, Case({"plain": [(0, "bad crc")]}, acks=0), native=True)[0] == "CLOSE"


def test_acks_out_of_range(ready: Rig) -> None:
    for acks in (2, -2, 127, -32768):
        how, frame, appended = produce(ready, Case({"plain": [(0, "one")]}, acks=acks), native=True)
        _, response = decode_response_frame(PRODUCE, 7, frame[4:])  # type: ignore[index]
        assert (how, appended) == ("slow", [])
        assert response.responses[0].partition_responses[0].error_code == 21


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "topics",
    [
        {"plain": [(0, "transactional")]},
        {"plain": [(0, "one"), (1, "transactional")]},
        {"plain": [(0, "one")], "stamped": [(0, "transactional")]},
    ],
)
def test_transactions_are_for_the_slow_path(
    ready: Rig, topics: dict[str, list[tuple[int, str]]], version: int
) -> None:
    """Check who answers.

    Without a transactional id the batches are refused; with one, the coordinator checks them.
    """
    case = Case(topics, version=version)
    how, frame, appended = produce(ready, case, native=True)
    _, response = decode_response_frame(PRODUCE, version, frame[4:])  # type: ignore[index]
    assert (how, appended) == ("slow", [])
    assert {p.error_code for t in response.responses for p in t.partition_responses} == {53}
    case.built.transactional_id = "tx"
    ready.processor.send(case.frame())
    ready.turn()
    ((_, message),) = ready.coordinator.take()
    assert isinstance(message, CheckTransaction)
    assert len(message.partitions) == 1
    assert ready.log.take() == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", ["", "tx"])
def test_a_transactional_id_is_for_the_slow_path(ready: Rig, transactional_id: str, version: int) -> None:
    case = Case({"plain": [(0, "idempotent")]}, version=version)
    case.built.transactional_id = transactional_id
    how, _, appended = produce(ready, case, native=True)
    assert (how, len(appended)) == ("slow", 1)


names = st.sampled_from(sorted(BATCHES))
topics = st.sampled_from([t.name for t in TOPICS] + ["nowhere"])
cases = st.builds(
    Case,
    st.dictionaries(
        topics, st.lists(st.tuples(st.integers(-1, 3), names), min_size=1, max_size=3), max_size=3
    ),
    acks=st.sampled_from([-1, 0, 1, 5]),
    version=st.sampled_from(list(VERSIONS)),
)


@settings(max_examples=rounds(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(cases, min_size=1, max_size=8))
def test_any_request_either_way(corpus: list[Case]) -> None:
    with rig() as ready:
        ready.publish(*TOPICS)
        # Error texts name the time; the batches are only as old as this test.
        started_ms = now_ms()
        ready.handler.broker.wall_clock_ms = lambda: started_ms
        for case in corpus:
            native, slow = both(ready, case)
            if native[0] == "native":
                assert slow[0] == ("NOOP" if case.acks == 0 else "slow")
                assert native[1:] == slow[1:]
            else:
                # Then the turn has only handed it back: served the same, but for the closed log.
                assert native[0] in ("slow", "NOOP", "CLOSE")
                assert native == slow


@settings(max_examples=rounds(200), deadline=None)
@given(st.data())
def test_mutated_requests_never_harm_the_turn(data: st.DataObject) -> None:
    with rig() as ready:
        ready.publish(*TOPICS)
        for _ in range(5):
            case = data.draw(cases)
            frame = bytearray(case.frame())
            body = 18 + (1 if case.version >= 9 else 0)
            for _ in range(data.draw(st.integers(1, 3))):
                at = data.draw(st.integers(body, len(frame) - 1)) if len(frame) > body else 0
                frame[at] = data.draw(st.integers(0, 255))
            cut = data.draw(st.integers(body, len(frame)))
            ready.processor.send(bytes(frame[:cut]) if cut >= body else bytes(frame))
            ready.turn()
            for job in ready.log.take():
                ready.log.append(job)
            ready.turn()
            ready.processor.replies()


def test_jobs_wait_in_order_while_the_log_ring_is_full(ready: Rig) -> None:
    case = Case({"plain": [(0, "one")]}, acks=1)
    sent = []
    frame = case.frame()
    for _ in itertools.repeat(None, 3):
        for _ in range(500):
            sent.append(struct.unpack_from("<I", ready.processor.send(frame), 60)[0])
        ready.take_all()
    taken = [job.request for job in ready.log.take()]
    assert len(taken) == ready.memory.ring(PROCESSOR, ready.context.index).size == 1024
    ready.turn()
    taken += [job.request for job in ready.log.take()]
    assert taken == sent


def test_drop_jobs_returns_what_the_log_process_never_saw(ready: Rig) -> None:
    frame = Case({"plain": [(0, "one")]}).frame()
    for _ in range(2):
        for _ in range(600):
            ready.processor.send(frame)
        ready.take_all()
    assert len(ready.handler.turn.drop_jobs()) == 1200 - 1024
    assert ready.memory.ring(ready.context.index, LOG).waiting() == 1024
