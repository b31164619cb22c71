"""Writes log directories in Kafka's format, and plays the broker that publishes what of them may be read."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition
from mpbroker.ipc.topology import LAYOUT_VERSION, PUBLIC_MAGIC, attach_table, public_blocks
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from mpbroker.storage import directory_lock
from mpbroker.storage.checkpoints import write_offsets, write_topic_id
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    TIME_INDEX_SUFFIX,
    partition_name,
    segment_name,
)
from mpbroker.storage.reader import Bound
from shm.region import Region

INDEX_INTERVAL_BYTES = 4096
_ids = itertools.count(1)


class PartitionWriter:
    """Appends batches to a partition's segments, with sparse indexes as the broker writes them."""

    def __init__(
        self, log_dir: Path, topic: str, partition: int = 0, *, first_offset: int = 0, topic_id: bytes = b""
    ) -> None:
        self.topic, self.partition = topic, partition
        self.topic_id = topic_id or next(_ids).to_bytes(16, "big")
        self.directory = log_dir / partition_name(topic, partition)
        self.directory.mkdir()
        write_topic_id(self.directory, self.topic_id)
        self.log_start = self.next_offset = first_offset
        self.roll()

    def roll(self) -> None:
        """Begins another segment."""
        self.base, self.position, self._since_entry = self.next_offset, 0, 0
        self._latest = (-1, self.base)
        for suffix in (".log", INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            (self.directory / segment_name(self.base, suffix)).touch()

    def append(
        self, records: Sequence[NewRecord], *, codec: Codec = Codec.NONE, append_time: int | None = None
    ) -> None:
        batch = build_batch(records, codec=codec, base_offset=self.next_offset, append_time=append_time)
        times = [record.timestamp for record in records] if append_time is None else [append_time]
        self.append_bytes(batch, len(records), max(times))

    def append_marker(self, marker: int, timestamp: int = 0) -> None:
        """A control batch; it takes one offset."""
        batch = build_transaction_marker(
            marker,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=timestamp,
            base_offset=self.next_offset,
        )
        self.append_bytes(batch, 1, timestamp)

    def append_bytes(self, batch: bytes | bytearray, offsets: int, max_timestamp: int) -> None:
        last = self.next_offset + offsets - 1
        if max_timestamp > self._latest[0]:
            self._latest = (max_timestamp, last)
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self._write(INDEX_SUFFIX, struct.pack(">ii", last - self.base, self.position))
            # The latest so far: a batch with earlier records makes no entry of its own.
            self._write(TIME_INDEX_SUFFIX, struct.pack(">qi", self._latest[0], self._latest[1] - self.base))
            self._since_entry = 0
        self._write(".log", batch)
        self.position += len(batch)
        self._since_entry += len(batch)
        self.next_offset += offsets

    def skip(self, offsets: int) -> None:
        """A gap, as compaction leaves it."""
        self.next_offset += offsets

    def torn_tail(self, data: bytes) -> None:
        """Bytes behind the end that nobody accounts for."""
        self._write(".log", data)

    @property
    def end(self) -> Bound:
        return Bound(self.next_offset, self.base, self.position)

    def _write(self, suffix: str, data: bytes | bytearray) -> None:
        with (self.directory / segment_name(self.base, suffix)).open("ab") as file:
            file.write(data)


def new_log_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / META_PROPERTIES).write_text("cluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\nversion=1\n")
    return path


def checkpoint(
    log_dir: Path,
    high_watermarks: dict[tuple[str, int], int],
    starts: dict[tuple[str, int], int] | None = None,
) -> None:
    """Write the checkpoints that a stopped broker leaves."""
    write_offsets(log_dir / HIGH_WATERMARKS, high_watermarks)
    write_offsets(log_dir / LOG_STARTS, starts or {})


def row_of(
    writer: PartitionWriter,
    bound: Bound | None = None,
    *,
    flags: int = PartitionFlag.PARTITION_LIVE,
    log_start: int | None = None,
    stable: Bound | None = None,
    aborted_end: int = 0,
) -> Partition:
    """What a broker says of a partition: what is readable, by default all that was written, and stable."""
    bound = bound or writer.end
    start = writer.log_start if log_start is None else log_start
    return Partition(
        *(writer.topic_id, writer.partition, 1, flags, 1, 0, 0, start),
        *(*bound, *(stable or bound), writer.next_offset, aborted_end),
    )


class FakeBroker:
    """Locks, a public region and a pointer to it, as of a broker that runs until `stop`.

    Its region lies outside of what pytest clears away: it goes at the latest with this object, also where a
    test failed before it could stop it.
    """

    def __init__(self, log_dir: Path) -> None:
        # The region has to be on a tmpfs.
        self.runtime_dir = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="mpbroker-spark-test-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self.runtime_dir, ignore_errors=True)
        (log_dir / LOCK).touch()
        self._locks = [_locked(self.runtime_dir), os.open(log_dir / LOCK, os.O_RDWR | os.O_CLOEXEC)]
        assert directory_lock.take(self._locks[1])
        region = Region.create_public(
            self.runtime_dir / "public", PUBLIC_MAGIC, LAYOUT_VERSION, public_blocks(64)
        )
        self._table = attach_table(region)
        self._pointer = log_dir / "mpbroker.json"
        self._pointer.write_text(json.dumps({"runtime_dir": str(self.runtime_dir), "pid": 1, "node_id": 1}))
        self._slots: dict[tuple[bytes, int], int] = {}

    def publish(self, writer: PartitionWriter, bound: Bound | None = None, **given: Any) -> None:
        """Makes everything below the bound readable (`row_of`)."""
        slot = self._slots.setdefault((writer.topic_id, writer.partition), len(self._slots))
        self.publish_slot(row_of(writer, bound, **given), slot)

    def publish_slot(self, partition: Partition, slot: int = 0) -> None:
        """Publish what another partition table has."""
        self._table.write(slot, pack_partition(partition))

    def stop(self) -> None:
        """Stop as SIGKILL does it: the pointer stays and leads nowhere, and the locks are nobody's."""
        self._remove()
        while self._locks:
            os.close(self._locks.pop())


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def numbered(count: int, *, first: int = 0, value_bytes: int = 20) -> list[NewRecord]:
    """Records whose key, value and time tell their number."""
    return [
        NewRecord(
            key=b"k%d" % n, value=(b"v%d" % n).ljust(value_bytes, b"."), timestamp=1_700_000_000_000 + n
        )
        for n in range(first, first + count)
    ]


def fill(
    writer: PartitionWriter,
    batches: int,
    per_batch: int = 10,
    *,
    value_bytes: int = 20,
    roll_every: int = 0,
    codecs: Iterable[Codec] = (Codec.NONE,),
) -> None:
    """Write so many batches of numbered records, codecs taking turns."""
    turn = itertools.cycle(codecs)
    for number in range(batches):
        if roll_every and number and number % roll_every == 0:
            writer.roll()
        writer.append(
            numbered(per_batch, first=writer.next_offset, value_bytes=value_bytes), codec=next(turn)
        )


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return new_log_dir(tmp_path / "log")


@pytest.fixture
def fake_broker(log_dir: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(log_dir)
    yield broker
    broker.stop()
