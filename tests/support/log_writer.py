"""A partition that is appended to without a process, its batches and its syncs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, resolve
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

# In the future, so that no producer has expired.
T0 = 4_000_000_000_000


TOPIC_ID = bytes(range(16))


def make_batch(
    count: int = 1, *, timestamp: int = T0, size: int = 20, producer: tuple[int, int, int] | None = None
) -> bytearray:
    """A batch of `count` records of `size` value bytes; producer is (id, epoch, base sequence)."""
    records = [NewRecord(key=None, value=bytes(size), timestamp=timestamp + i) for i in range(count)]
    if producer is None:
        return build_batch(records, leader_epoch=0)
    producer_id, epoch, sequence = producer
    return build_batch(
        records, leader_epoch=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def topic_config(**overrides: str) -> TopicConfig:
    return resolve(BrokerConfig(), {key.replace("_", "."): value for key, value in overrides.items()})


class Writer:
    """Appends as the log process does, but for everything around it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log

    def roll(self) -> None:
        """Begin a new segment, and close the files of the one before."""
        for fd in self.log.roll():
            os.close(fd)

    def append(
        self,
        count: int = 1,
        *,
        timestamp: int = T0,
        size: int = 20,
        producer: tuple[int, int, int] | None = None,
    ) -> int:
        """Returns the base offset."""
        state = self.log.state
        data = make_batch(count, timestamp=timestamp, size=size, producer=producer)
        base = state.log_end
        if state.roll_due(base + count - 1, len(data), timestamp + count - 1, T0):
            self.roll()
        assign_offset_and_epoch(data, base, 0)
        os.pwrite(state.fd, data, state.size)
        state.note_batch(base + count - 1, state.size, len(data), timestamp + count - 1)
        if producer is not None:
            state.producers.update(producer[0], producer[1], producer[2], count, base, timestamp + count - 1)
        return base


MakeWriter = Callable[..., Writer]


class Syncs:
    """Instead of a file system; counts, and fails at the call with that number."""

    def __init__(self, *, is_synced_at_once: bool = True, fails_at: int = 0) -> None:
        self.is_synced_at_once = is_synced_at_once
        self.fails_at = fails_at
        self.elsewhere: set[int] = set()  # inodes
        self.count = 0

    def has(self, path: Path | str | int) -> bool:
        return os.stat(path).st_ino not in self.elsewhere  # noqa: PTH116 - it may be a descriptor

    def sync(self) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
