"""Makes the directories of a deleted topic's partitions again, from what the object store has.

A partition's directory gets the list of its remote segments, its log start, and an empty segment where these
end, with the producers of that offset. So it is opened as one whose local segments were all deleted, and the
coordinator may create the topic under its old id. The tier then finds the topic among those that are there,
and notes that in the ledger. Directories that were made for a topic that was not created in the end are found
by the next try, or set aside by the next start.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final

from mpbroker.config.integers import LONG_MAX
from mpbroker.ipc.calls import UndeleteTopic
from mpbroker.records.batch import checksum
from mpbroker.remote.layout.indexes import split_indexes
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.state import RemoteState, RemoteTopic
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.removal import TOPIC_DELAY_MS
from mpbroker.storage import names
from mpbroker.storage.checkpoints import (
    fsync_directory,
    put_id_and_epochs,
    read_topic_id,
    write_whole,
)
from mpbroker.storage.remote_segments import write_remote_segments
from mpbroker.storage.segments import segments_of

# So long before its day ends a topic is not brought back: its segments might be removed meanwhile.
MARGIN_MS: Final = 10 * 60 * 1000
_EMPTY: Final = (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)


class CannotUndelete(Exception):
    """Raised where a topic cannot be brought back; the message says why, and what to do."""


def undelete(
    store: ObjectStore,
    state: RemoteState,
    wanted: UndeleteTopic,
    there: Container[bytes],
    log_dirs: Sequence[Path],
    now_ms: int,
) -> None:
    """Make the directories of a topic; `there` are the ids of the topics that the broker has.

    Raises CannotUndelete, StoreError, OSError.
    """
    topic = state.topics.get(wanted.topic_id)
    if topic is None:
        raise CannotUndelete("the object store has nothing of it any more, or never had")
    if wanted.topic_id in there:
        raise CannotUndelete("it is not deleted")
    if topic.deleted_ms is not None and now_ms - topic.deleted_ms > TOPIC_DELAY_MS - MARGIN_MS:
        raise CannotUndelete("its day is over: its segments are about to be removed from the object store")
    if (topic.name, topic.partitions) != (wanted.name, wanted.partitions):
        raise CannotUndelete(f"that topic was {topic.name}, with {topic.partitions} partitions")
    for number in range(topic.partitions):
        _make(store, state, topic, number, log_dirs)


def end_of(state: RemoteState, topic_id: bytes, partition: int) -> int:
    """Return the end of a partition that comes back: that of its segments, or without one its log start."""
    segments = state.segments_of(topic_id, partition)
    return segments[-1].end if segments else state.log_starts.get((topic_id, partition), 0)


def start_of(state: RemoteState, topic_id: bytes, partition: int) -> int:
    """Return the log start of a partition that comes back. It may lie within a segment."""
    segments = state.segments_of(topic_id, partition)
    start = segments[0].base if segments else end_of(state, topic_id, partition)
    return max(start, state.log_starts.get((topic_id, partition), 0))


def _make(
    store: ObjectStore, state: RemoteState, topic: RemoteTopic, number: int, log_dirs: Sequence[Path]
) -> None:
    key, name = (topic.topic_id, number), names.partition_name(topic.name, number)
    segments, end = state.segments_of(*key), end_of(state, *key)
    for log_dir in log_dirs:
        if (found := log_dir / name).is_dir():
            if read_topic_id(found, topic.topic_id) == topic.topic_id and segments_of(found) == [end]:
                return
            raise CannotUndelete(f"{found} is in the way: restart the broker, which sets strays aside")
    log_dir = log_dirs[number % len(log_dirs)]
    # The name of a deleted partition: if this is killed, the next start removes the directory.
    making = log_dir / names.renamed(topic.name, number, uuid.uuid4().hex, names.DELETE_SUFFIX)
    making.mkdir()
    put_id_and_epochs(making, topic.topic_id, _epochs(segments))
    for suffix in _EMPTY:
        write_whole(making / names.segment_name(end, suffix), b"")
    if segments:
        write_whole(making / names.segment_name(end, names.SNAPSHOT_SUFFIX), _producers(store, segments[-1]))
        write_remote_segments(making, state.remote_segments(*key))
        # Nobody may read what retention or DeleteRecords has removed.
        write_whole(making / names.UNDELETED_START, b"%d" % start_of(state, *key))
    fsync_directory(making)
    making.rename(log_dir / name)
    fsync_directory(log_dir)


def _epochs(segments: Iterable[SegmentAdded]) -> list[tuple[int, int]]:
    """Return the leader epochs of a log, and one that begins where it ends.

    So a client that has read further learns that its offsets are gone, and does not read other records there.
    """
    starts: dict[int, int] = {}
    for one in segments:
        for epoch, start in one.epochs:
            starts.setdefault(epoch, start)
    return [*starts.items(), (max(starts, default=0) + 1, LONG_MAX)]


def _producers(store: ObjectStore, segment: SegmentAdded) -> bytes:
    """Return the snapshot of the producers at the end of a segment. Raises StoreError."""
    name = segment.objects.indexes
    body = store.get(name)
    if checksum(body) != segment.indexes_crc:
        raise StoreError(f"{name} is damaged: its checksum is not the ledger's")
    return split_indexes(body, segment.index_sizes).producer_snapshot
