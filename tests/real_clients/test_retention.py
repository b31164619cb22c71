"""Old records go and clients notice: DeleteRecords, retention under readers and writers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mpbroker.storage.segments import segments_of
from ops.bench.brokers import Broker, Mpbroker
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import sample_records, stored_in
from tests.support.client_tools import ToolError, dump, eventually, kafka_tool
from tests.support.committed_offsets import messages
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker, create_topic, kill_process, served, stop_cleanly
from tests.support.threads import concurrently

DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
SEGMENT = {"segment.bytes": str(1 << 20)}


def earliest(admin: AdminClient, topic: str) -> int:
    (future,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
    offset: int = future.result(PATIENCE_S).offset
    return offset


def test_delete_records_by_kafkas_tool(broker: Broker, new_topic: TopicMaker, tmp_path: Path) -> None:
    topic, path = new_topic(3), tmp_path / "offsets.json"
    confluent_write(broker.bootstrap, topic, sample_records(2, 100, 1), "none")
    wanted = [{"topic": topic, "partition": n, "offset": offset} for n, offset in enumerate((10, -1, 10))]
    path.write_text(json.dumps({"partitions": wanted, "version": 1}))
    asked = ("--bootstrap-server", broker.bootstrap, "--offset-json-file", str(path))
    try:
        printed = kafka_tool(DELETE_RECORDS, *asked)
    except ToolError as error:
        printed = str(error)
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 10", printed), printed
    assert re.search(rf"partition: {topic}-1\s+low_watermark: 50", printed), printed
    assert "OffsetOutOfRange" in printed, printed


@pytest.fixture
def retaining(tmp_path: Path) -> Iterator[Mpbroker]:
    """A broker that looks all the time."""
    flags = (
        *("-o", "log.initial.task.delay.ms=0"),
        *("-o", "log.retention.check.interval.ms=20"),
        *("-o", "log.segment.delete.delay.ms=0"),
    )
    with served(Mpbroker(tmp_path, flags=flags)) as running:
        yield running


def nothing_more_goes(broker: Broker, retention_bytes: int) -> bool:
    """Whether what lies behind the oldest segment is less than what is to be kept."""
    try:
        sizes = [path.stat().st_size for path in sorted((broker.log_dir / "river-0").glob("*.log"))]
    except FileNotFoundError:
        return False  # it went just now
    return sum(sizes[1:]) < retention_bytes


def test_old_segments_go_and_what_is_left_is_kafkas(retaining: Mpbroker) -> None:
    admin = AdminClient({"bootstrap.servers": retaining.bootstrap})
    create_topic(retaining.bootstrap, "kept", 1, {"retention.ms": "-1", **SEGMENT})
    create_topic(
        retaining.bootstrap, "sized", 1, {"retention.ms": "-1", "retention.bytes": "1000000", **SEGMENT}
    )
    # Their timestamps are older than a week.
    create_topic(retaining.bootstrap, "aged", 1, SEGMENT)
    records = sample_records(1, 6_000, 1)
    for topic in ("kept", "sized", "aged"):
        confluent_write(retaining.bootstrap, topic, records, "none")
    eventually(lambda: earliest(admin, "aged") == 6_000, "all of the old records are gone")
    assert earliest(admin, "kept") == 0
    assert confluent_read(retaining.bootstrap, "kept", 1, 6_000) == stored_in(records)[0]
    assert len(segments_of(retaining.log_dir / "kept-0")) > 2
    eventually(lambda: earliest(admin, "sized") > 0, "what is too much goes")
    sized, aged = (retaining.log_dir / name for name in ("sized-0", "aged-0"))
    eventually(lambda: segments_of(sized)[0] == earliest(admin, "sized"), "with its files")
    assert sum(path.stat().st_size for path in sized.glob("*.log")) >= 1_000_000
    confluent_write(retaining.bootstrap, "aged", records[:1], "none")
    eventually(lambda: earliest(admin, "aged") == 6_001, "and so is what came later")
    eventually(lambda: len(segments_of(aged)) == 1, "its files too")
    eventually(lambda: not list(retaining.log_dir.rglob("*.deleted")), "and their space")
    stop_cleanly(retaining)
    for path in retaining.log_dir.glob("[ks]*-0/*"):
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            printed = dump("--files", str(path))
            assert "corrupt" not in printed.lower(), printed
            assert "mismatch" not in printed.lower(), printed


def test_readers_beside_retention_get_every_record_once_or_learn_where_the_log_starts(
    retaining: Mpbroker,
) -> None:
    """A writer fills segments, retention takes them, a reader follows: what it gets is right and in order."""
    kept_bytes = 3 << 20
    settings = {"retention.bytes": str(kept_bytes), "retention.ms": "-1", **SEGMENT}
    create_topic(retaining.bootstrap, "river", 1, settings)
    admin = AdminClient({"bootstrap.servers": retaining.bootstrap})
    written = threading.Event()
    count = 12_000

    def write() -> None:
        producer = Producer({"bootstrap.servers": retaining.bootstrap, "linger.ms": 1})
        for number in range(count):
            producer.produce("river", b"%d".ljust(2_000) % number, partition=0)
            if number % 100 == 0:
                producer.flush(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    passes = 0
    while not written.is_set() or passes < 3:
        follow(retaining, passes)
        passes += 1
    thread.join()
    eventually(lambda: earliest(admin, "river") > 0, "retention has taken segments")
    eventually(lambda: nothing_more_goes(retaining, kept_bytes), "what is left stays")
    assert whole_river(retaining)[1] == count


def whole_river(broker: Broker) -> tuple[int, int]:
    """Read all that is left, whose values are offsets; return both ends."""
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x"})) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition("river", 0), PATIENCE_S)
    found = [(one.offset(), int(one.value() or b"")) for one in messages(broker.bootstrap, "river", [0])]
    assert found == [(offset, offset) for offset in range(low, high)]
    return low, high


def follow(broker: Broker, number: int) -> None:
    """Some records, from the beginning as it is at the moment."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"follower-{number}",
            "auto.offset.reset": "earliest",
            "fetch.max.bytes": 300_000,
            "message.max.bytes": 300_000,
        }
    )
    consumer.assign([TopicPartition("river", 0, OFFSET_BEGINNING)])
    last = -1
    for message in consumer.consume(2_000, 1.0):
        assert message.error() is None, message.error()
        offset = message.offset()
        assert offset is not None
        assert offset > last
        assert int(message.value() or b"") == offset
        last = offset
    consumer.close()


def test_the_log_process_dies_again_and_again_while_segments_go(retaining: Mpbroker) -> None:
    """What lies behind the log start is there, once and in order, whoever deletes and whoever dies."""
    kept_bytes = 2 << 20
    settings = {"retention.bytes": str(kept_bytes), "retention.ms": "-1", **SEGMENT}
    create_topic(retaining.bootstrap, "river", 1, settings)
    admin = AdminClient({"bootstrap.servers": retaining.bootstrap})
    errors: list[KafkaError] = []
    sent = 0

    def write(ends: threading.Event) -> None:
        nonlocal sent
        producer = Producer({"bootstrap.servers": retaining.bootstrap, "enable.idempotence": True})
        while not ends.is_set():
            value = b"%d".ljust(3_000) % sent
            producer.produce(
                "river",
                value,
                partition=0,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            sent += 1
            if sent % 100 == 0:
                producer.flush(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0

    deleted = 0
    with concurrently(write):
        for _ in range(5):
            before = earliest(admin, "river")
            eventually(lambda before=before: earliest(admin, "river") > before, "segments go")  # type: ignore[misc]
            kill_process(retaining, "log 0")
            eventually(lambda: can_delete(admin, earliest(admin, "river") + 1), "records are deleted")
            deleted = earliest(admin, "river")
    assert errors == []
    eventually(lambda: nothing_more_goes(retaining, kept_bytes), "what is left stays")
    low, high = whole_river(retaining)
    assert (low >= deleted, high) == (True, sent)


def can_delete(admin: AdminClient, offset: int) -> bool:
    """Not while there is no log process."""
    (asked,) = admin.delete_records([TopicPartition("river", 0, offset)]).values()
    try:
        return bool(asked.result(PATIENCE_S).low_watermark >= offset)
    except KafkaException:
        return False
