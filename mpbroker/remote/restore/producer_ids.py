"""Moves the next producer id of a restored broker ahead, beyond what the broker before may have given out.

A cut may be older than the last block of ids. An id that is given to a second producer would make records of
the one duplicates of the other's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mpbroker.protocol.codec import data_key
from mpbroker.protocol.messages import ProducerIdsRecord
from mpbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record, read_frame
from mpbroker.records.builder import build_batch
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.record import NewRecord
from mpbroker.remote.restore.mirror import place
from mpbroker.storage.checkpoints import opened, read_epochs, read_offsets, write_all_at, write_offsets
from mpbroker.storage.leader_epochs import epoch_of
from mpbroker.storage.names import METADATA_DIRECTORY, RECOVERY_POINTS, parse_partition, segment_name
from mpbroker.storage.segments import segments_of
from shm.clock import wall_ms

JUMP: Final = 1_000_000
_KEY: Final = data_key(ProducerIdsRecord)


def jump_ahead(directories: Iterable[str], log_dirs: Sequence[Path], generations: int) -> None:
    """Add a record to the metadata log: producer ids go on JUMP further for each generation since the cut.

    `directories` are those of the cut. What follows the last whole batch of the log is cut off, as a recovery
    does it. A second call jumps again. Raises OSError, CorruptBatch.
    """
    for path in directories:
        if path.partition("/")[2] == METADATA_DIRECTORY:
            _jump(place(log_dirs, path), generations * JUMP)


def _jump(directory: Path, count: int) -> None:
    next_id = next_offset = epoch = 0
    bases = segments_of(directory)
    end = 0
    for base in bases:
        data, end = (directory / segment_name(base)).read_bytes(), 0
        for batch in _whole_batches(data, is_last=base == bases[-1]):
            next_id = max([next_id, *_next_ids(batch)])
            next_offset, epoch = batch.last_offset + 1, batch.header.leader_epoch
            end = batch.header.position + batch.header.length
    if not bases:
        return
    # The owner before may have begun an epoch here, without a record.
    epoch = max(epoch, epoch_of(read_epochs(directory), next_offset))
    record = ProducerIdsRecord(broker_id=-1, next_producer_id=next_id + count)
    value = encode_metadata_record(record, 0)
    records = [NewRecord(value=value, timestamp=wall_ms())]
    added = bytes(build_batch(records, base_offset=next_offset, leader_epoch=epoch))
    with opened(directory / segment_name(bases[-1]), os.O_WRONLY) as fd:
        os.ftruncate(fd, end)
        write_all_at(fd, added, end)
        os.fsync(fd)
    # After a clean stop that is where the log ends.
    path, (topic, partition, _) = directory.parent / RECOVERY_POINTS, parse_partition(directory.name)
    if (topic, partition) in (points := read_offsets(path)):
        points[topic, partition] = next_offset + 1
        write_offsets(path, points)


def _whole_batches(data: bytes, *, is_last: bool) -> Iterator[Batch]:
    try:
        yield from iterate_batches(data)
    except CorruptBatch:
        if not is_last:
            raise


def _next_ids(batch: Batch) -> Iterator[int]:
    for record in () if batch.is_control else batch.records():
        value = record.value or b""
        if read_frame(value)[0] == _KEY:
            yield decode_metadata_record(value).next_producer_id
