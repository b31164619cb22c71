"""Apache Kafka on copies of partition directories that mpbroker has left: what it says of them, and serves.

Each directory becomes partition 0 of a topic of its own in one of two log directories: `stopped`, of which
Kafka believes that they were closed cleanly, with our checkpoints, and `crashed`, which it recovers itself.
The topics, with our ids, are in `bootstrap.checkpoint`: with the records of that snapshot a controller begins
its metadata log, whatever they are (Kafka: BootstrapDirectory, ActivationRecordsGenerator; KIP-801).
"""

from __future__ import annotations

import re
import shutil
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch, encode_record
from mpbroker.protocol.messages import PartitionRecord, TopicRecord
from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.storage.checkpoints import read_offsets, read_topic_id, write_offsets, write_topic_id
from mpbroker.storage.directory_layout import write_clean_shutdown
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    LOG_STARTS,
    LOG_SUFFIX,
    META_PROPERTIES,
    RECOVERY_POINTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from mpbroker.storage.segments import segments_of
from ops.bench.brokers import Kafka
from tests.support.client_tools import SMALL_JVM, ToolError, dump
from tests.support.committed_offsets import COMMITTED, UNCOMMITTED, consumer_of

BOOTSTRAP = "bootstrap.checkpoint"
NODE_ID = 1
READ_TIMEOUT_S = 60.0
# Their names are one argument, which may have 128 KiB.
DUMPED_AT_ONCE = 1_000
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
# All that DumpLogSegments prints of files that are as they should be.
GOOD = re.compile(
    r"Dumping |Log starting offset: |baseOffset: .* isvalid: true$|\| offset: "
    r"|offset: \d+ position: \d+$|timestamp: -?\d+ offset: \d+$|version: |producerId: "
    r"|.* passed sanity check\.$|\S+index is empty\.$|$"
)
# What Kafka's log layer says of files that it does not like, or changes.
COMPLAINTS = re.compile(
    r"\] (?:WARN|ERROR) .*(?:\.log\.|LogManager|LogLoader|ReplicaManager|ProducerStateManager|UnifiedLog)"
    r"|orrupt|runcat(?:ed|ing) .*segment|tray log"
)
# Where nobody wrote down the high watermark, Kafka begins with the log start. If it looks for the place of
# that before a leader moves it, it finds the beginning of the batch that it may be in the middle of.
HARMLESS = re.compile(r"Non-monotonic update of high watermark from \(offset=\d+, segment=\[-1:-1\]\)")

Records = list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]


@dataclass(frozen=True)
class Left:
    """A copy of a partition's directory, in the hands of Kafka as the only partition of the topic `name`."""

    name: str
    path: Path
    log_start: int = 0
    # Of compaction, or of a repair.
    has_gaps: bool = False
    # What of it a consumer of committed records is to get, if that is known.
    committed: frozenset[int] | None = None

    def batches(self) -> Iterator[Batch]:
        for base in segments_of(self.path):
            yield from iterate_batches((self.path / f"{base:020d}{LOG_SUFFIX}").read_bytes())

    def records(self) -> Records:
        """Return what a consumer that reads all of it is to get."""
        return [
            (one.offset, one.key, one.value, one.headers, one.timestamp)
            for batch in self.batches()
            if not batch.is_control
            for one in batch.records()
            if one.offset >= self.log_start
        ]

    def ends(self) -> tuple[int, int]:
        """The log start offset and the log end offset."""
        bases = segments_of(self.path)
        last = max((batch.last_offset + 1 for batch in self.batches()), default=0)
        return max(self.log_start, bases[0]), max(bases[-1], last)

    def files(self) -> list[str]:
        return sorted(str(path) for path in self.path.iterdir() if path.name.endswith(SUFFIXES))


@dataclass
class Adopting(Kafka):
    """A Kafka that has never run, and begins with what it was given."""

    jvm: Sequence[str] = SMALL_JVM
    lefts: list[Left] = field(default_factory=list)
    topic_ids: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for home in (self.stopped, self.crashed):
            home.mkdir(parents=True)
        self.properties = (*self.properties, f"log.dirs={self.stopped},{self.crashed}")

    @property
    def stopped(self) -> Path:
        return self.log_dir

    @property
    def crashed(self) -> Path:
        return self.directory / "crashed"

    def take(
        self,
        name: str,
        partition: Path,
        *,
        stopped: bool,
        has_gaps: bool = False,
        committed: frozenset[int] | None = None,
    ) -> None:
        """Copies the directory. Of two with the same topic id the later one gets another id."""
        starts = partition.parent / LOG_STARTS
        topic, _, number = partition.name.rpartition("-")
        known = read_offsets(starts) if starts.exists() else {}
        home = self.stopped if stopped else self.crashed
        name = f"{len(self.lefts)}.{name}"
        left = Left(name, home / f"{name}-0", known.get((topic, int(number)), 0), has_gaps, committed)
        shutil.copytree(partition, left.path)
        topic_id = read_topic_id(partition)
        assert topic_id is not None
        if topic_id in self.topic_ids.values():
            topic_id = (len(self.lefts) + 1000).to_bytes(16, "big")
            write_topic_id(left.path, topic_id)
        self.topic_ids[name] = topic_id
        self.lefts.append(left)

    def _format(self, java: str, libs: str, properties: Path) -> None:
        super()._format(java, libs, properties)
        for home in (self.stopped, self.crashed):
            its = [left for left in self.lefts if left.path.parent == home]
            write_offsets(home / LOG_STARTS, {(left.name, 0): left.ends()[0] for left in its})
            if home == self.stopped:
                ends = {(left.name, 0): left.ends()[1] for left in its}
                write_offsets(home / RECOVERY_POINTS, ends)
                write_offsets(home / HIGH_WATERMARKS, ends)
                write_clean_shutdown(home)
        bootstrap = self.stopped / BOOTSTRAP
        bootstrap.write_bytes(with_records(bootstrap.read_bytes(), list(self._topics())))

    def _topics(self) -> Iterator[bytes]:
        homes = {home: directory_id(home) for home in (self.stopped, self.crashed)}
        for left in self.lefts:
            topic_id = self.topic_ids[left.name]
            yield encode_record(TopicRecord(name=left.name, topic_id=topic_id))
            yield encode_record(
                PartitionRecord(
                    partition_id=0,
                    topic_id=topic_id,
                    replicas=[NODE_ID],
                    isr=[NODE_ID],
                    leader=NODE_ID,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[homes[left.path.parent]],
                )
            )


def directory_id(home: Path) -> bytes:
    lines = (home / META_PROPERTIES).read_text().splitlines()
    return uuid_bytes(next(line.split("=", 1)[1] for line in lines if line.startswith("directory.id=")))


def with_records(snapshot: bytes, values: list[bytes]) -> bytes:
    """One batch more in front of the footer, which is a batch of its own."""
    *_, footer = iterate_batches(snapshot)
    at, base = footer.header.position, footer.header.base_offset
    more = build_metadata_batch(values, timestamp_ms=0, base_offset=base, leader_epoch=1)
    return snapshot[:at] + bytes(more) + struct.pack(">q", base + len(values)) + snapshot[at + 8 :]


# ---- what is wrong ----


def complaints(kafka: Adopting) -> list[str]:
    """List complaints of Kafka's tool, of Kafka while it starts, and of a consumer."""
    found = dump_complaints(kafka.lefts)
    try:
        kafka.start()
        said = (line for line in kafka.output().splitlines() if COMPLAINTS.search(line))
        found += [line for line in said if not HARMLESS.search(line)]
        found += differences(kafka)
        kafka.stop()
    finally:
        kafka.kill()
    return found


def dump_complaints(lefts: Sequence[Left]) -> list[str]:
    """Every line of DumpLogSegments that it would not print of files that are whole and fit each other."""
    files = [file for left in lefts for file in left.files()]
    gaps = tuple(f"Non-consecutive offsets in {left.path}/" for left in lefts if left.has_gaps)
    found = []
    for at in range(0, len(files), DUMPED_AT_ONCE):
        some = files[at : at + DUMPED_AT_ONCE]
        indexes = [file for file in some if file.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX))]
        try:
            printed = dump("--deep-iteration", "--files", ",".join(some))
            assert printed.count("Dumping ") == len(some)
            printed += dump("--index-sanity-check", "--files", ",".join(indexes))
        except ToolError as error:
            found.append(str(error))
            continue
        found += [f"DumpLogSegments: {line}" for line in unlike(printed, gaps)]
    return found


def unlike(printed: str, gaps: tuple[str, ...]) -> Iterator[str]:
    """Lines that say something bad; of gaps only where there are to be none."""
    is_told_gaps = False
    for line in printed.splitlines():
        if is_told_gaps and line.startswith("  "):
            continue
        is_told_gaps = bool(gaps) and line.startswith(gaps)
        if not is_told_gaps and not GOOD.match(line):
            yield line


def differences(kafka: Adopting) -> list[str]:
    """Between what lies in the directories and what consumers get of Kafka: offsets, keys, values, headers,
    timestamps, where the log begins and ends; and which records are committed.
    """
    wanted = {left.name: left.records() for left in kafka.lefts}
    with closing(consumer_of(kafka.bootstrap, UNCOMMITTED)) as consumer:
        got = consume_all(consumer, {name: len(records) for name, records in wanted.items()})
        found = []
        for left in kafka.lefts:
            ends = consumer.get_watermark_offsets(TopicPartition(left.name, 0), READ_TIMEOUT_S)
            if ends != left.ends():
                found.append(f"{left.path} goes from and to {left.ends()}, for Kafka {ends}")
            if got[left.name] != wanted[left.name]:
                found.append(
                    f"{left.path} has {len(wanted[left.name])} records, Kafka serves {len(got[left.name])}"
                )
    known = {
        left.name: left.committed & {one[0] for one in wanted[left.name]}
        for left in kafka.lefts
        if left.committed is not None
    }
    with closing(consumer_of(kafka.bootstrap, COMMITTED)) as consumer:
        seen = consume_all(consumer, {name: len(offsets) for name, offsets in known.items()})
    for name, offsets in known.items():
        if offsets != {one[0] for one in seen[name]}:
            found.append(f"{name} has {len(offsets)} committed records, Kafka serves {len(seen[name])}")
    return found


def consume_all(consumer: Consumer, counts: Mapping[str, int]) -> dict[str, Records]:
    """To the end of each topic, or so many records: behind the last one may be offsets that nothing has."""
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in counts])
    got: dict[str, Records] = {topic: [] for topic in counts}
    open_ends = set(counts)
    deadline = time.monotonic() + READ_TIMEOUT_S
    while open_ends and time.monotonic() < deadline:
        for message in consumer.consume(1_000, timeout=0.2):
            topic, error = message.topic(), message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_ends.discard(str(topic))
                continue
            if len(got[str(topic)]) + 1 >= counts[str(topic)]:
                open_ends.discard(str(topic))
            headers = tuple(message.headers() or ())
            got[str(topic)].append(
                (message.offset(), message.key(), message.value(), headers, message.timestamp()[1])  # type: ignore[arg-type]
            )
    return got
