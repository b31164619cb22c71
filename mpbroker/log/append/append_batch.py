"""Append one batch that the native turn leaves to Python.

Such a batch is transactional, is the first batch of a segment, or needs a new segment. (Kafka:
UnifiedLog.append, LocalLog.append, LogSegment.append.)
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from mpbroker.ipc.slots import Batch
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, assign_offset_and_epoch, stamp_append_time
from mpbroker.records.markers import ABORT, marker_of
from mpbroker.storage.checkpoints import write_all_at
from mpbroker.storage.disk_errors import PASSING
from mpbroker.storage.transaction_index import AbortedTransaction

DUPLICATE = -1


class Appended(NamedTuple):
    """The outcome of an append.

    `failure`: a permanent errno, which takes the log directory offline. `no_room`: a temporary errno, of a
    full disk or a lack of file descriptors. Each is 0 if there is no such error.
    """

    error: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    was_appended: bool = False
    failure: int = 0
    no_room: int = 0


class Marker(NamedTuple):
    """A transaction marker: its kind, ABORT or COMMIT, and the epoch of the coordinator that sent it."""

    kind: int
    coordinator_epoch: int


def refusal(log: PartitionLog | None, batch: Batch) -> int:
    """Return the error code with which the batch is refused, or 0 if it may be appended."""
    if log is None or log.state.generation != batch.slot_generation:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    flags = log.state.flags
    if flags & PartitionFlag.PARTITION_OFFLINE:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if flags & PartitionFlag.PARTITION_DELETED:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not flags & PartitionFlag.PARTITION_LIVE:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not log.state.oldest_config_version <= batch.config_version <= log.state.config_version:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if batch.record_count < 1 else ErrorCode.NONE


def append_batch(
    log: PartitionLog | None,
    batch: Batch,
    data: memoryview | None,
    now_ms: int,
    retire: Callable[[int], object],
) -> Appended:
    """Append the batch, or refuse it. `retire` gets the fd of each rolled file, to sync and close it."""
    refused = refusal(log, batch)
    if refused or log is None or data is None:
        return Appended(refused or ErrorCode.NOT_LEADER_OR_FOLLOWER)
    state = log.state
    if batch.length > state.segment_bytes:
        return Appended(ErrorCode.RECORD_LIST_TOO_LARGE)
    marker: Marker | None = None
    if batch.attributes & CONTROL_BIT:
        found = marker_of(data)
        if found is None or batch.producer_id < 0:
            return Appended(ErrorCode.INVALID_RECORD, log_start_offset=state.log_start)
        marker = Marker(*found)
    max_timestamp = now_ms if state.append_time else batch.max_timestamp
    try:
        log.wake()
    except OSError as error:
        return _storage_error(error)
    if state.roll_due(state.log_end + batch.record_count - 1, batch.length, max_timestamp, now_ms):
        try:
            for fd in log.roll():
                retire(fd)
        except OSError as error:
            return _storage_error(error)
    if batch.producer_id >= 0:
        verdict, original, timestamp = _checked(log, batch, marker)
        if verdict == DUPLICATE:
            return Appended(ErrorCode.NONE, original, timestamp, state.log_start)
        if verdict != ErrorCode.NONE:
            return Appended(verdict, log_start_offset=state.log_start)
    return _write(log, batch, data, now_ms, max_timestamp, marker)


def _checked(log: PartitionLog, batch: Batch, marker: Marker | None) -> tuple[int, int, int]:
    """Return (error code or DUPLICATE, base offset, timestamp).

    For DUPLICATE, base offset and timestamp are those of the batch in the log; otherwise they are -1.
    """
    producers = log.state.producers
    if marker is not None:
        error = producers.check_marker(batch.producer_id, batch.producer_epoch, marker.coordinator_epoch)
        return error, -1, -1
    return producers.check(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
        bool(batch.attributes & TRANSACTIONAL_BIT),
    )


def _write(
    log: PartitionLog, batch: Batch, data: memoryview, now_ms: int, max_timestamp: int, marker: Marker | None
) -> Appended:
    state = log.state
    base, position = state.log_end, state.size
    last = base + batch.record_count - 1
    assign_offset_and_epoch(data, base, state.leader_epoch)
    if state.append_time:
        stamp_append_time(data, now_ms)
    try:
        write_all_at(state.fd, data, position)
        if marker is not None and marker.kind == ABORT:
            _note_aborted(log, batch.producer_id, last)
    except OSError as error:
        return _cut_back(log, error)
    state.note_batch(last, position, batch.length, max_timestamp)
    try:
        _note_producer(log, batch, base, position, max_timestamp, marker)
    except OSError as error:
        # The marker is written, but the begin of the next open transaction was not found: a retry of the
        # marker finds it.
        return _storage_error(error)
    return Appended(
        ErrorCode.NONE, base, now_ms if state.append_time else -1, state.log_start, was_appended=True
    )


def _cut_back(log: PartitionLog, error: OSError) -> Appended:
    """Cut off the bytes of a failed write. Return a refusal with `error`, or with the cut's own error."""
    try:
        log.state.cut_back()
    except OSError as worse:
        return Appended(ErrorCode.KAFKA_STORAGE_ERROR, failure=worse.errno or errno.EIO)
    return _storage_error(error)


def _note_aborted(log: PartitionLog, producer_id: int, last: int) -> None:
    """Add the transaction aborted at offset `last` to `.txnindex`. Raises OSError with nothing added."""
    producers = log.state.producers
    first = producers.open_from(producer_id)
    if first >= 0:
        others = producers.first_open(but=producer_id)
        stable = others if others >= 0 else last + 1
        log.add_aborted(AbortedTransaction(producer_id, first, last, stable))


def _note_producer(
    log: PartitionLog, batch: Batch, base: int, position: int, max_timestamp: int, marker: Marker | None
) -> None:
    """Update the producer and the last stable offset for the batch. Raises OSError."""
    producer_id, epoch = batch.producer_id, batch.producer_epoch
    if producer_id < 0:
        return
    producers = log.state.producers
    if marker is not None:
        producers.ended(producer_id, epoch, marker.coordinator_epoch, max_timestamp)
        log.ended()
        return
    in_transaction = bool(batch.attributes & TRANSACTIONAL_BIT)
    if in_transaction:
        log.begun(base, position)
    producers.update(
        producer_id, epoch, batch.base_sequence, batch.record_count, base, max_timestamp, in_transaction
    )


def _storage_error(error: OSError) -> Appended:
    """Return a refusal with the error: as `no_room` if it is temporary, else as `failure`."""
    if error.errno in PASSING:
        return Appended(ErrorCode.KAFKA_STORAGE_ERROR, no_room=error.errno or errno.ENOSPC)
    return Appended(ErrorCode.KAFKA_STORAGE_ERROR, failure=error.errno or errno.EIO)
