"""Reading committed offsets from files, beside a log that grows, is compacted, damaged, or made anew."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.coordinator.groups.records import (
    Entry,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode,
)
from mpbroker.ipc.table import PAYLOAD_BYTES, PartitionFlag, pack_partition, unpack_partition
from mpbroker.ipc.topology import SharedMemory
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.observe import committed_offsets
from mpbroker.observe.committed_groups import CommittedGroup
from mpbroker.observe.committed_offsets import CommittedOffsets
from mpbroker.protocol.topic_names import GROUP_TOPIC
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

SLOT, GENERATION = 3, 7
MARKER_KEY = {False: b"\0\0\0\0", True: b"\0\0\0\1"}
MEMBER = MemberValue("m", None, "client", "/host", 1, 1, b"", b"")


def offset(group: str, partition: int, number: int | None) -> Entry:
    value = None if number is None else OffsetValue(number, -1, "", 0)
    return OffsetKey(group, "t", partition), value


def generation(group: str, members: int | None) -> Entry:
    value = None if members is None else GroupValue("consumer", 1, None, None, 0, (MEMBER,) * members)
    return GroupKey(group), value


class Log:
    """A partition of the topic, as its log worker writes it."""

    def __init__(self, memory: SharedMemory, log_dir: Path, partition: int = 0) -> None:
        self.memory = memory
        self.partition, self.slot = partition, SLOT + partition
        self.directory = log_dir / f"{GROUP_TOPIC}-{partition}"
        self.directory.mkdir()
        self.segment = self.directory / f"{0:020d}.log"
        self.segment.touch()
        self.generation = GENERATION
        self.end = 0
        self.publish()

    def append(self, *entries: Entry, producer_id: int = -1, visible: bool = True) -> None:
        records = [NewRecord(value, key, 0) for key, value in map(encode, entries)]
        in_transaction = producer_id >= 0
        self._write(
            build_batch(records, base_offset=self.end, producer_id=producer_id, transactional=in_transaction)
        )
        self.end += len(records)
        if visible:
            self.publish()

    def end_transaction(self, producer_id: int, *, commits: bool) -> None:
        record = NewRecord(b"\0\0\0\0\0\0", MARKER_KEY[commits], 0)
        self._write(
            build_batch(
                [record], base_offset=self.end, producer_id=producer_id, transactional=True, control=True
            )
        )
        self.end += 1
        self.publish()

    def _write(self, batch: bytearray) -> None:
        with self.segment.open("ab") as file:
            file.write(batch)

    def publish(self, flags: int = PartitionFlag.PARTITION_LIVE) -> None:
        now = unpack_partition(bytes(PAYLOAD_BYTES))._replace(
            generation=self.generation,
            flags=flags,
            high_watermark=self.end,
            high_watermark_position=self.segment.stat().st_size,
            log_end_offset=self.end,
        )
        self.memory.table().write(self.slot, pack_partition(now))

    def seen(self) -> list[LogSeen]:
        return [
            LogSeen(
                GROUP_TOPIC, self.partition, 0, self.end, None, self.end, True, self.slot, self.generation
            )
        ]


class Clock:
    """The time that passes where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(committed_offsets, "time", made)
    return made


@pytest.fixture
def log(memory: SharedMemory, tmp_path: Path) -> Log:
    return Log(memory, tmp_path)


@pytest.fixture
def committed(log: Log) -> Iterator[CommittedOffsets]:
    made = CommittedOffsets(log.memory.table(), (str(log.directory.parent),))
    yield made
    made.close()


def followed(committed: CommittedOffsets, log: Log) -> dict[str, CommittedGroup]:
    for _ in committed.follow(log.seen()):
        pass
    return committed.groups


def test_it_goes_on_where_it_ended(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 3), offset("g", 1, 4), generation("g", 2))
    assert followed(committed, log) == {"g": CommittedGroup({("t", 0): 3, ("t", 1): 4}, 2)}
    log.append(offset("g", 0, 9))
    log.append(offset("h", 0, 1))
    read = sum(1 for _ in committed.follow(log.seen()))
    assert read == 2, "only what is new"
    assert committed.groups["g"].offsets == {("t", 0): 9, ("t", 1): 4}
    assert committed.groups["h"] == CommittedGroup({("t", 0): 1})
    assert committed.unread == 0


def test_what_is_not_durable_does_not_count(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 3))
    log.append(offset("g", 0, 4), visible=False)
    assert followed(committed, log)["g"].offsets == {("t", 0): 3}


def test_a_group_that_has_nothing_left_is_gone(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 3), generation("g", 1))
    log.append(generation("g", 0))
    assert followed(committed, log)["g"].members == 0
    log.append(offset("g", 0, None), offset("unknown", 0, None))
    assert followed(committed, log)["g"] == CommittedGroup({}, 0)
    log.append(generation("g", None), generation("never", None))
    assert followed(committed, log) == {}


def test_offsets_of_transactions_wait_for_their_end(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 1))
    log.append(offset("g", 0, 5), producer_id=1)
    log.append(offset("g", 1, 6), producer_id=2)
    assert followed(committed, log)["g"].offsets == {("t", 0): 1}
    log.end_transaction(1, commits=False)
    log.end_transaction(2, commits=True)
    assert followed(committed, log)["g"].offsets == {("t", 0): 1, ("t", 1): 6}


def test_who_was_away_for_long_reads_anew(
    log: Log, committed: CommittedOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(offset("gone", 0, 3))
    first_bytes = log.segment.stat().st_size
    log.append(offset("g", 0, 3))
    assert set(followed(committed, log)) == {"gone", "g"}
    # The cleaner has taken the group out, tombstone and all.
    log.segment.write_bytes(log.segment.read_bytes()[first_bytes:])
    log.publish()
    assert set(followed(committed, log)) == {"gone", "g"}
    monkeypatch.setattr(committed_offsets, "FORGET_AFTER_S", -1)
    assert set(followed(committed, log)) == {"g"}


def test_a_topic_that_was_made_anew_is_read_anew(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 3))
    assert followed(committed, log)
    log.segment.write_bytes(b"")
    log.generation, log.end = GENERATION + 1, 0
    log.publish()
    assert followed(committed, log) == {}


def test_a_partition_that_is_offline_is_left_as_it_was(log: Log, committed: CommittedOffsets) -> None:
    log.append(offset("g", 0, 3))
    assert followed(committed, log)
    log.append(offset("g", 0, 4))
    log.publish(PartitionFlag.PARTITION_OFFLINE)
    assert followed(committed, log)["g"].offsets == {("t", 0): 3}


def test_damage_is_told_once_and_counted(
    log: Log, committed: CommittedOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    log.append(offset("g", 0, 3))
    assert followed(committed, log)
    good = log.segment.read_bytes()
    log.append(offset("g", 0, 4))
    data = bytearray(log.segment.read_bytes())
    data[len(good) + 16] ^= 0xFF  # the magic
    log.segment.write_bytes(data)
    for _ in range(2):
        assert followed(committed, log)["g"].offsets == {("t", 0): 3}
    assert committed.unreadable == 1
    assert committed.unread == 1
    assert len(caplog.records) == 1
    assert f"{GROUP_TOPIC}-0 cannot be read from offset 1" in caplog.text


def test_a_reading_that_is_given_up_goes_on_later(log: Log, committed: CommittedOffsets) -> None:
    for number in range(5):
        log.append(offset("g", 0, number))
    next(committed.follow(log.seen()))
    assert committed.groups["g"].offsets == {("t", 0): 0}
    assert committed.unread == 4
    assert followed(committed, log)["g"].offsets == {("t", 0): 4}


def test_partitions_take_turns(log: Log, memory: SharedMemory, committed: CommittedOffsets) -> None:
    """Whoever has no time to read all reads of each one, though the first one has always more to read."""
    logs = [log, *(Log(memory, log.directory.parent, partition) for partition in (1, 2))]
    seen = [one for each in logs for one in each.seen()]
    for number, each in enumerate(logs):
        each.append(offset(f"g{number}", 0, number))
    for _ in logs:
        log.append(offset("busy", 0, log.end))
        next(committed.follow(seen))
    assert set(committed.groups) == {"g0", "g1", "g2"}


def test_reading_that_is_given_up_again_and_again_is_never_begun_anew(
    log: Log, committed: CommittedOffsets, clock: Clock
) -> None:
    """A scrape that never reaches the end does not forget what it has read, if the end comes nearer."""
    for number in range(20):
        log.append(offset(f"g{number}", 0, 1))
    for number in range(20):
        log.append(offset("busy", 0, number))
        next(committed.follow(log.seen()))
        clock.now += committed_offsets.FORGET_AFTER_S / 21
    assert len(committed.groups) == 20


def test_only_the_partition_that_was_not_read_for_long_is_read_anew(
    log: Log, memory: SharedMemory, committed: CommittedOffsets, clock: Clock
) -> None:
    other = Log(memory, log.directory.parent, 1)
    log.append(offset("g", 0, 3))
    other.append(offset("h", 0, 3))
    seen = log.seen() + other.seen()
    assert sum(1 for _ in committed.follow(seen)) == 2
    other.publish(PartitionFlag.PARTITION_OFFLINE)
    for _ in range(2):
        clock.now += committed_offsets.FORGET_AFTER_S * 0.75
        assert not list(committed.follow(seen))
    assert set(committed.groups) == {"g", "h"}, "what is offline is as it was"
    other.publish()
    assert sum(1 for _ in committed.follow(seen)) == 1, "it may have missed tombstones"
    assert set(committed.groups) == {"g", "h"}


@pytest.mark.parametrize("given_up", [False, True])
def test_no_file_is_kept_open(log: Log, committed: CommittedOffsets, given_up: bool) -> None:
    log.append(offset("g", 0, 3))
    if given_up:
        next(committed.follow(log.seen()))
    else:
        followed(committed, log)
    log.segment.unlink()
    open_files = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert not [path for path in open_files if GROUP_TOPIC in str(path)]
