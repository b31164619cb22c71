"""Names below a log directory (Kafka: LogFileUtils, UnifiedLog.parseTopicPartitionName, Uuid)."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from mpbroker.ipc.pointer import LOCK as LOCK
from mpbroker.protocol.topic_names import METADATA_TOPIC

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
DELETED_FILE_SUFFIX = ".deleted"
# Files that the cleaner has written, and those that the log process is about to put in place.
CLEANED_FILE_SUFFIX = ".cleaned"
SWAP_FILE_SUFFIX = ".swap"
# Files of work that was not finished.
LEFTOVER_SUFFIXES = (SWAP_FILE_SUFFIX, CLEANED_FILE_SUFFIX, DELETED_FILE_SUFFIX, ".tmp")

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"

# Offsets of a segment lie within 31 bits of its base, as in its indexes (`LARGEST_RELATIVE` in index.pxd).
OFFSET_SPAN = 1 << 31

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# Ours: what lies below the checkpointed high watermarks is on disk, as with log.flush.policy=group.
DURABLE_MARK = "mpbroker.durable"
# Ours: identities and paths of all log directories of a broker that has several.
ALL_DIRS = "mpbroker.dirs"
# Ours: of a partition's copies in two log directories this one counts.
MOVED = "mpbroker.moved"
# Ours: this copy counts, even if the other one is marked as moved.
STAYED = "mpbroker.stayed"
# Ours: the scrubber's position and findings.
SCRUB = "mpbroker.scrub"
# Ours, in a partition's directory: which of its segments the object store has.
REMOTE_SEGMENTS = "mpbroker.remote"
# Ours, in the directory of a partition that was undeleted: its log never starts below this offset.
UNDELETED_START = "mpbroker.undeleted"
# Ours, in the first log directory: the ledger's owner (mpbroker.remote.ledger.owner).
REMOTE_OWNER = "mpbroker.remote.owner"
# Ours, in the first log directory of a standby: the entry by which it claims the ledger.
REMOTE_CLAIM = "mpbroker.remote.claim"
# The prefix of the names of all files that are ours alone; a topic's name may have it, too.
OWN_PREFIX = "mpbroker."

# In the metadata's directory: the vote of Kafka's controller (Kafka: FileQuorumStateStore).
QUORUM_STATE = "quorum-state"

LONGEST_NAME = 255
# Longest name of a partition that can move: its future replica adds a dot, 32 digits of an id, the suffix.
LONGEST_TO_MOVE = LONGEST_NAME - 33 - len(FUTURE_SUFFIX)
# Digits in the names of a segment's files.
OFFSET_DIGITS = 20
# A dry run recovers a copy there, which is deleted afterwards.
DRY_RUN = ".mpbroker-dry-run"
# Ours, in the first log directory: what was fetched from the object store.
REMOTE_CACHE = "remote-cache"
# Ours, in the first log directory of a standby: what answers its clients while it follows.
STANDBY_FACE = "mpbroker.standby"
# Ours: the contents of log directories, by generation and nonce, of an owner that another one has followed.
FENCED = "mpbroker.fenced"
# Ours, in each log directory of a standby that serves reads: a directory for each partition (`links_name`).
REPLICA = "mpbroker.replica"
# Directories in a log directory that hold no partition.
NOT_PARTITIONS = frozenset(
    {"lost+found", "remote-log-index-cache", REMOTE_CACHE, DRY_RUN, STANDBY_FACE, FENCED, REPLICA}
)


_SUFFIXES = (DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)
_LIVE = re.compile(r".+-[0-9]+").fullmatch


class NotAPartition(ValueError):
    """Raised for a directory name that is not a partition's."""


class PartitionName(NamedTuple):
    """The parts of a partition directory's name. `suffix` is empty for a live partition."""

    topic: str
    partition: int
    suffix: str = ""


def segment_name(base: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{base:0{OFFSET_DIGITS}d}{suffix}"


def parse_segment(name: str, suffix: str = LOG_SUFFIX) -> int | None:
    """Return the base offset in a file's name; None if the name is not OFFSET_DIGITS digits and `suffix`."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == OFFSET_DIGITS and stem.isdecimal() else None


def is_live_partition(name: str) -> bool:
    """Return whether a directory's name is a partition's, and not of a deleted, stray or future partition.

    With thousands of names the time matters: this takes a quarter of the time of `parse_partition`.
    """
    return _LIVE(name) is not None


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


METADATA_DIRECTORY = partition_name(METADATA_TOPIC, 0)


def parse_partition(name: str) -> PartitionName:
    """Split a directory's name into its parts. A topic may contain dashes and dots. Raises NotAPartition."""
    plain, suffix = name, ""
    if name.endswith(_SUFFIXES) and "." in name:
        plain, suffix = name[: name.rindex(".")], name[name.rindex("-") :]
    topic, dash, number = plain.rpartition("-")
    if not (dash and topic and number.isdecimal() and number.isascii()):
        raise NotAPartition(name)
    return PartitionName(topic, int(number), suffix)


def links_name(topic_id: bytes, partition: int, generation: int) -> str:
    """Return the name of the directory with links to a partition's files, as of a generation of its slot."""
    return f"{topic_id.hex()}-{partition}-{generation}"


def renamed(topic: str, partition: int, unique: str, suffix: str) -> str:
    """Return the name of a deleted, stray or future partition's directory, at most LONGEST_NAME bytes."""
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: LONGEST_NAME - len(tail)] + tail


def log_worker_of(topic: str, partition: int, log_workers: int) -> int:
    """Return the number (from 0) of the log worker that owns a partition.

    The owner depends on the topic's name and not on its id: a directory or a line of a checkpoint has the
    same owner after the topic is deleted and created again.
    """
    return 0 if topic == METADATA_TOPIC else (zlib.crc32(topic.encode()) + partition) % log_workers
