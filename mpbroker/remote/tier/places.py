"""The partitions that the tier has to do with, as the partition table has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpbroker.ipc.table import Partition, PartitionFlag, read_partition_surely
from mpbroker.ipc.topology import slots_given
from mpbroker.remote.tier.topics import Topics
from mpbroker.storage.checkpoints import opened, read_topic_id
from shm.table import SlotTable

Key = tuple[bytes, int]
_HELD = re.compile(r"/proc/self/fd/[0-9]+")
_OURS = PartitionFlag.PARTITION_TIERED | PartitionFlag.PARTITION_REMOTE_DELETED


class PlaceGone(Exception):
    """Raised when a partition was deleted, moved or closed meanwhile. Read the table again."""


class Place(NamedTuple):
    """A partition that is open. The segments before the one with base `newest_base` are sealed.

    `durable` is the high watermark, `stable` the last stable offset. `flags` are of PartitionFlag.
    """

    slot: int
    generation: int
    topic: str
    topic_id: bytes
    partition: int
    directory: Path
    flags: int
    log_start: int
    newest_base: int
    durable: int
    stable: int

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_copied(self) -> bool:
        """Return whether its segments go to the object store."""
        return self.flags & (_OURS | PartitionFlag.PARTITION_COPY_DISABLED) == PartitionFlag.PARTITION_TIERED

    @property
    def is_removed(self) -> bool:
        """Return whether what the object store has of it is to be removed."""
        return bool(self.flags & PartitionFlag.PARTITION_REMOTE_DELETED)


class Places:
    """Reads partitions from the table. Several threads may use it at the same time.

    `is_known` returns whether the ledger has a topic: one that is tiered no more keeps what the store has.
    """

    def __init__(
        self,
        table: SlotTable,
        log_workers: int,
        log_dirs: Sequence[str],
        topics: Topics,
        is_known: Callable[[bytes], bool],
    ) -> None:
        self._table = table
        self._log_workers = log_workers
        self._log_dirs = [Path(name) for name in log_dirs]
        self._topics = topics
        self._is_known = is_known

    def read(self) -> list[Place]:
        """Return all open partitions that are tiered, or that the ledger may know."""
        slots = slots_given(self._table, self._log_workers)
        return [place for slot in slots if (place := self._of(slot)) is not None]

    def find(self, slot: int, generation: int) -> Place | None:
        """Return the partition in a slot, if it is one of those and of this generation."""
        place = self._of(slot) if 0 <= slot < self._table.slots else None
        return place if place is not None and place.generation == generation else None

    def is_current(self, place: Place) -> bool:
        """Return whether the partition is still open, in the same directory."""
        now = self._of(place.slot)
        return now is not None and (now.generation, now.directory) == (place.generation, place.directory)

    def _of(self, slot: int) -> Place | None:
        now = read_partition_surely(self._table, slot)
        if not (now.generation and now.flags & PartitionFlag.PARTITION_LIVE):
            return None
        if not (now.flags & _OURS or self._is_known(now.topic_id)):
            return None
        topic = (self._topics.now or {}).get(now.topic_id)
        return None if topic is None else self._made(slot, now, topic.name)

    def _made(self, slot: int, now: Partition, topic: str) -> Place:
        return Place(
            slot,
            now.generation,
            topic,
            now.topic_id,
            now.partition,
            self._log_dirs[now.log_dir] / f"{topic}-{now.partition}",
            now.flags,
            now.log_start_offset,
            now.high_watermark_segment,
            now.high_watermark,
            now.last_stable_offset,
        )


def told(place: Place, error: Exception) -> str:
    """Return the text of an error in a directory that is `held`, with the directory's own name."""
    return _HELD.sub(lambda _: str(place.directory), str(error))


@contextmanager
def held(place: Place) -> Iterator[Path]:
    """Open a partition's directory; yield a path to it that a rename does not change.

    A topic that was deleted may have given its directory's name to a new one: a file of the one must never
    be taken for the other's. Raises PlaceGone, CheckpointCorrupt, OSError.
    """
    try:
        with opened(place.directory) as fd:
            directory = Path(f"/proc/self/fd/{fd}")
            if read_topic_id(directory, place.topic_id) != place.topic_id:
                raise PlaceGone(f"{place.directory} is another topic's")
            yield directory
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlaceGone(f"{place.directory}: {error}") from error
