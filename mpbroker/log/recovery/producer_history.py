"""Find the last five batches of each producer in the log; a snapshot has only the last one.

A producer may retry any of the last five batches it sent (KIP-98), so after a crash the broker must
recognise all five as duplicates. (Kafka forgets them at a restart.) This module walks back from the snapshot
over the headers of batches, a piece at a time, until every producer has five batches, or the first batch of
its epoch, or the log begins. It reads at most about `RECALL_BYTES_MAX`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mpbroker.log.partition.batch_checker import recall_batches
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import opened
from mpbroker.storage.index import offset_ceiling, offset_floor
from mpbroker.storage.names import INDEX_SUFFIX, segment_name
from mpbroker.storage.producer_state import Producers

PIECE_BYTES = 64 << 10
RECALL_BYTES_MAX = 32 << 20


def recall(directory: Path | str, bases: Sequence[int], producers: Producers) -> None:
    """Add each producer's earlier batches to `producers`, from the segments at `bases`. Raises OSError."""
    left = RECALL_BYTES_MAX
    for base in reversed(bases):
        wanting = producers.wanting()
        if wanting < 0 or left <= 0:
            return
        if base >= wanting:
            continue
        with opened(f"{directory}/{segment_name(base)}") as log:
            index = _open_index(f"{directory}/{segment_name(base, INDEX_SUFFIX)}")
            try:
                left -= _recall_in(log, index, base, producers, left)
            finally:
                if index >= 0:
                    os.close(index)


def _open_index(path: str) -> int:
    """Open an index; return -1 if it is missing: it will be rebuilt, and the whole segment is walked."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _recall_in(log: int, index: int, base: int, producers: Producers, left: int) -> int:
    """Recall batches from one segment; return the bytes walked over."""
    size = os.fstat(log).st_size
    walked, piece = 0, PIECE_BYTES
    while (wanting := producers.wanting()) > base and walked < left:
        end = _position_of(log, index, base, wanting, size)
        if end == 0:
            break
        start = _boundary_before(index, base, end, max(0, end - piece))
        if end - start > left:
            return left
        recall_batches(log, start, end, producers)
        if producers.wanting() == wanting:
            # Missing batches lie further back, if anywhere.
            piece *= 4
            if start == 0:
                break
        else:
            piece = PIECE_BYTES
        walked += end - start
    return walked


def _position_of(log: int, index: int, base: int, offset: int, size: int) -> int:
    """Return the position of the batch with the offset; `size` if the offset is after the segment."""
    floor = offset_floor(index, base, offset)[1] if index >= 0 else 0
    found = scan.find_offset(log, floor, size, offset)
    return found.position if found is not None else size


def _boundary_before(index: int, base: int, end: int, wanted: int) -> int:
    """Return the position of an indexed batch before `end`, near `wanted` or earlier; 0 if there is none."""
    while wanted > 0 and index >= 0:
        offset = offset_ceiling(index, base, wanted)
        position = offset_floor(index, base, offset)[1] if offset is not None else end
        if position < end:
            return position
        wanted = max(0, end - 4 * (end - wanted))
    return 0
