"""Names below a log directory (Kafka: LogFileUtils, UnifiedLog.parseTopicPartitionName, Uuid)."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from mpbroker.protocol.topic_names import METADATA_TOPIC

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
DELETED_FILE_SUFFIX = ".deleted"
# What the cleaner has written, and what the log process is about to put in place.
CLEANED_FILE_SUFFIX = ".cleaned"
SWAP_FILE_SUFFIX = ".swap"
# Of something that was not finished.
LEFTOVER_SUFFIXES = (SWAP_FILE_SUFFIX, CLEANED_FILE_SUFFIX, DELETED_FILE_SUFFIX, ".tmp")

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"

# An offset in a segment is its base and 31 bits, as its indexes have it (`LARGEST_RELATIVE` in index.pxd).
OFFSET_SPAN = 1 << 31

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# Ours: the high watermarks in the checkpoint are on disk, as they are with log.flush.policy=group.
DURABLE_MARK = "mpbroker.durable"
# Ours: identities and paths of all directories of the broker, if there are several.
ALL_DIRS = "mpbroker.dirs"
# Ours: of a partition that is in two log directories this one counts.
MOVED = "mpbroker.moved"
# Ours: the same, whatever the other one says.
STAYED = "mpbroker.stayed"
# Ours: how far the scrubber is, and what it has found.
SCRUB = "mpbroker.scrub"

LONGEST_NAME = 255
# Of a partition that can move: its future replica has a dot and 32 digits of an id before the suffix.
LONGEST_TO_MOVE = LONGEST_NAME - 33 - len(FUTURE_SUFFIX)
# In the names of a segment's files.
OFFSET_DIGITS = 20
# What a recovery would do is done to a copy there, which is gone afterwards.
DRY_RUN = ".mpbroker-dry-run"
# Directories in a log directory that hold no partition.
NOT_PARTITIONS = frozenset({"lost+found", "remote-log-index-cache", DRY_RUN})


_SUFFIXES = (DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)
_LIVE = re.compile(r".+-[0-9]+").fullmatch


class NotAPartition(ValueError):
    """A directory whose name is not that of a partition."""


class PartitionName(NamedTuple):
    """What a directory's name says. `suffix` is empty for a live partition."""

    topic: str
    partition: int
    suffix: str = ""


def segment_name(base: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{base:0{OFFSET_DIGITS}d}{suffix}"


def parse_segment(name: str, suffix: str = LOG_SUFFIX) -> int | None:
    """The base offset in the name of a file of this kind; None if it is another file."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == OFFSET_DIGITS and stem.isdecimal() else None


def is_live_partition(name: str) -> bool:
    """Whether a directory's name is that of a partition that is neither on its way out nor to another
    directory. Of thousands: `parse_partition` takes four times as long.
    """
    return _LIVE(name) is not None


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition(name: str) -> PartitionName:
    """Splits at the last dash: topics may contain dashes, and dots. Raises NotAPartition."""
    plain, suffix = name, ""
    if name.endswith(_SUFFIXES) and "." in name:
        plain, suffix = name[: name.rindex(".")], name[name.rindex("-") :]
    topic, dash, number = plain.rpartition("-")
    if not (dash and topic and number.isdecimal() and number.isascii()):
        raise NotAPartition(name)
    return PartitionName(topic, int(number), suffix)


def renamed(topic: str, partition: int, unique: str, suffix: str) -> str:
    """The name of a directory to be deleted or found stray; the topic is cut to what a file system takes."""
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: LONGEST_NAME - len(tail)] + tail


@dataclass(frozen=True)
class LogWorker:
    """Which of how many."""

    number: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    def owns(self, topic: str, partition: int) -> bool:
        return self.is_alone or log_worker_of(topic, partition, self.count) == self.number


ALONE = LogWorker()


def log_worker_of(topic: str, partition: int, log_workers: int) -> int:
    """The number of the log worker that has the partition, of so many.

    It goes by the name: a directory, and a line of a checkpoint, have the same owner when their topic is
    deleted and made anew.
    """
    return 0 if topic == METADATA_TOPIC else (zlib.crc32(topic.encode()) + partition) % log_workers
