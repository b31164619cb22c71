"""Compaction under writers and readers, and with processes killed: no last value of a key is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import FetchRequest
from mpbroker.storage.names import segment_name
from mpbroker.storage.segments import segments_of
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import dump, eventually
from tests.support.committed_offsets import messages
from tests.support.polling import PATIENCE_S, random_moment
from tests.support.real_brokers import create_topic, kill_process, served, stop_cleanly
from tests.support.socket_client import SocketClient
from tests.support.threads import InThread

KEYS = 200
SEGMENT_BYTES = 1 << 20
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}
FLAGS = ("-o", "log.cleaner.backoff.ms=20", "-o", "log.flush.offset.checkpoint.interval.ms=1000")
# A commit takes a sync, so long records fill a segment with fewer of them. A broker takes 4096 characters.
LONG_METADATA = "m" * 4000


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[Mpbroker]:
    """A broker that compacts whatever there is."""
    with served(Mpbroker(tmp_path / "broker", flags=FLAGS)) as running:
        yield running


class Load(InThread):
    """A producer of values that count up, some of them tombstones, until it is told to end."""

    def __init__(
        self, broker: Mpbroker, topic: str, compression: str = "none", pause_s: float = 0.02
    ) -> None:
        super().__init__()
        self.last: dict[bytes, bytes | None] = {}
        self.count = 0
        self._broker, self._topic, self._compression = broker, topic, compression
        self._pause_s = pause_s

    def _run(self) -> None:
        chance = random.Random(5)
        producer = Producer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "enable.idempotence": True,
                "compression.type": self._compression,
                "linger.ms": 2,
            }
        )
        while not self._ends.is_set():
            for _ in range(500):
                key = b"%d" % chance.randrange(KEYS)
                value = b"%09d" % self.count + chance.randbytes(chance.randrange(600))
                value = None if chance.random() < 0.1 else value
                producer.produce(self._topic, key=key, value=value)
                self.last[key] = value
                self.count += 1
            assert producer.flush(PATIENCE_S) == 0
            self._ends.wait(self._pause_s)


def read_all(broker: Mpbroker, topic: str) -> list[Any]:
    """Offset, key and value of every record, as one consumer sees them."""
    return [(one.offset(), one.key(), one.value()) for one in messages(broker.bootstrap, topic, [0])]


def cleanings(broker: Mpbroker) -> list[str]:
    return [line for line in broker.output().splitlines() if "is clean up to offset" in line]


def swaps(broker: Mpbroker) -> int:
    return len(cleanings(broker))


def without_tombstones(values: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in values.items() if value is not None}


def check(broker: Mpbroker, topic: str, last: dict[bytes, bytes | None]) -> None:
    seen = read_all(broker, topic)
    offsets = [one[0] for one in seen]
    assert offsets == sorted(set(offsets))
    assert without_tombstones({key: value for _, key, value in seen}) == without_tombstones(last)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_readers_see_the_last_value_of_every_key(cleaning: Mpbroker, compression: str) -> None:
    """While segments are replaced below them, again and again."""
    create_topic(cleaning.bootstrap, "kept", 1, COMPACTED)
    with Load(cleaning, "kept", compression) as load:
        before = swaps(cleaning)
        while swaps(cleaning) < before + 4:
            seen = read_all(cleaning, "kept")
            assert [one[0] for one in seen] == sorted({one[0] for one in seen})
            numbers = [int(value[:9]) for _, _, value in seen if value is not None]
            assert numbers == sorted(numbers)
    check(cleaning, "kept", load.last)
    stored = sum(path.stat().st_size for path in (cleaning.log_dir / "kept-0").glob("*.log"))
    assert stored < 6 * SEGMENT_BYTES
    offsets = (cleaning.log_dir / "cleaner-offset-checkpoint").read_text().split("\n")
    assert any(line.startswith("kept 0 ") for line in offsets)


@pytest.mark.parametrize("role", ["cleaner", "log 0"])
def test_either_process_may_be_killed(cleaning: Mpbroker, role: str) -> None:
    create_topic(cleaning.bootstrap, "killed", 1, COMPACTED)
    chance = random.Random(11)
    with Load(cleaning, "killed") as load:
        for _ in range(6):
            done = swaps(cleaning)
            eventually(lambda done=done: swaps(cleaning) > done, "it is compacted")  # type: ignore[misc]
            random_moment(chance, 0.1)
            kill_process(cleaning, role)
    check(cleaning, "killed", load.last)


def test_what_is_aborted_takes_no_value_along(cleaning: Mpbroker) -> None:
    """Check transactions that are longer than segments, compacted when their markers are in the last one."""
    create_topic(cleaning.bootstrap, "transacted", 1, COMPACTED)
    chance, last = random.Random(7), dict[bytes, bytes | None]()
    producers = [
        Producer({"bootstrap.servers": cleaning.bootstrap, "transactional.id": name}) for name in "ab"
    ]
    for producer in producers:
        producer.init_transactions(PATIENCE_S)
    for _ in range(5):
        written: list[dict[bytes, bytes | None]] = [{}, {}]
        for producer in producers:
            producer.begin_transaction()
        for _ in range(4):
            for producer, values in zip(producers, written, strict=True):
                for _ in range(40):
                    key = b"%d of %d" % (chance.randrange(500), producers.index(producer))
                    values[key] = None if chance.random() < 0.3 else chance.randbytes(10_000)
                    producer.produce("transacted", key=key, value=values[key])
                assert producer.flush(PATIENCE_S) == 0
        done = swaps(cleaning)
        for producer, values in zip(producers, written, strict=True):
            if chance.random() < 0.5:
                producer.commit_transaction(PATIENCE_S)
                last.update(values)
            else:
                producer.abort_transaction(PATIENCE_S)
        eventually(lambda done=done: swaps(cleaning) > done, "it is compacted")  # type: ignore[misc]
    check(cleaning, "transacted", last)


def test_slow_consumers_of_segments_that_are_compacted_or_deleted(tmp_path: Path) -> None:
    """Check one in the middle of a segment that is compacted, and one at the end of one that is deleted."""
    with served(Mpbroker(tmp_path / "broker", flags=(*FLAGS, "--handlers", "1"))) as broker:
        lag = "min.compaction.lag.ms"
        policy = {"cleanup.policy": "compact,delete", "retention.ms": "-1", lag: "1000000000"}
        # The handler keeps its reader until files are deleted.
        create_topic(broker.bootstrap, "slow", 1, COMPACTED | policy | {"file.delete.delay.ms": "60000"})
        bases, first = fill_segments(broker, 9), broker.log_dir / "slow-0" / segment_name(0)
        assert bases[1] > 42
        with SocketClient(broker) as client:
            for offset in [*range(22), *bases[1:7]]:
                assert first_offset(client, offset) == offset
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            entry = ConfigEntry(lag, "0", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, "slow", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
            eventually(
                lambda: first.stat().st_size < SEGMENT_BYTES * 3 // 4, "the first segment is compacted"
            )
            assert first_offset(client, 22) == 22
            eventually(lambda: cleanings(broker) != [], "all of them are")
            bases = segments_of(broker.log_dir / "slow-0")
            for offset in [bases[4] - 1, *bases[4:9], *bases[:3]]:
                first_offset(client, offset)
            deleted = admin.delete_records([TopicPartition("slow", 0, bases[4])])
            for future in deleted.values():
                future.result(PATIENCE_S)
            eventually(lambda: segments_of(broker.log_dir / "slow-0")[0] == bases[4], "segments are deleted")
            assert first_offset(client, bases[4]) == bases[4]


def fill_segments(broker: Mpbroker, count: int) -> list[int]:
    """Write one-record batches of equal size until there are so many segments; return their first offsets.

    The cleaner takes the first twenty records.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    directory, written = broker.log_dir / "slow-0", 0
    while len(found := segments_of(directory)) < count:
        is_often = written < 20 or len(found) == 2
        key = b"often" if is_often else b"%05d" % written
        producer.produce("slow", key=key, value=bytes(22_000), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        written += 1
    return found


def first_offset(client: SocketClient, offset: int) -> int:
    """Return the base offset of a fetch's first batch. Python serves it, since it names many partitions."""
    others = [FetchRequest.FetchPartition(n, partition_max_bytes=1) for n in range(1, 21)]
    wanted = FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1)
    request = FetchRequest(min_bytes=1, max_bytes=1 << 20, session_epoch=-1)
    request.topics = [FetchRequest.FetchTopic("slow", partitions=[wanted, *others])]
    found = client.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    assert found.error_code == 0
    return int.from_bytes(bytes(found.records)[:8], "big")


def test_committed_offsets_are_compacted(tmp_path: Path) -> None:
    """Their own topic, and the coordinator reads what is left."""
    small = ("-o", f"offsets.topic.segment.bytes={SEGMENT_BYTES}")
    small += ("-o", "log.cleaner.min.cleanable.ratio=0.01")
    with served(Mpbroker(tmp_path / "broker", flags=(*FLAGS, *small))) as broker:
        create_topic(broker.bootstrap, "read", 1)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        count = 0

        def commit_and_look() -> bool:
            nonlocal count
            for _ in range(100):
                count += 1
                position = TopicPartition("read", 0, count, metadata=LONG_METADATA)
                consumer.commit(offsets=[position], asynchronous=False)
            return "__consumer_offsets-" in "".join(cleanings(broker))

        while not commit_and_look():
            assert count < 20_000
        kill_process(broker, "coordinator")
        (found,) = consumer.committed([TopicPartition("read", 0)], PATIENCE_S)
        assert found.offset == count
        consumer.close()
        cleaned = [int(line.split(" bytes and ")[1].split(" ")[0]) for line in cleanings(broker)]
        assert min(cleaned) < 5


def test_kafkas_tool_reads_what_is_left(cleaning: Mpbroker) -> None:
    create_topic(cleaning.bootstrap, "dumped", 1, COMPACTED)
    with Load(cleaning, "dumped", "lz4") as load:
        eventually(lambda: swaps(cleaning) > 2, "it is compacted")
    stop_cleanly(cleaning)
    directory = cleaning.log_dir / "dumped-0"
    segments = sorted(directory.glob("*.log"))
    assert len(segments) > 1
    printed = dump("--deep-iteration", "--files", ",".join(map(str, segments)))
    assert "isvalid: true" in printed
    assert "isvalid: false" not in printed
    indexes = ",".join(
        str(path) for suffix in ("index", "timeindex") for path in directory.glob(f"*.{suffix}")
    )
    said = dump("--index-sanity-check", "--files", indexes)
    assert "passed sanity check" in said
    assert "Mismatches" not in said
    cleaning.start()
    check(cleaning, "dumped", load.last)
