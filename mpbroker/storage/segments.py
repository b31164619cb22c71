"""The segments of a partition: their names, and their batches up to the durable end in the partition table.

Nothing at or above the high watermark is read. Batches are yielded one by one, so that a caller can do other
work between two batches, and a segment need not fit into memory. Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Final

from mpbroker.ipc.table import Partition
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.storage.names import LOG_SUFFIX, parse_segment, segment_name


def segments_of(directory: Path) -> list[int]:
    """Return the base offsets of all segments in a partition's directory, ascending. Raises OSError."""
    return offsets_of(directory, LOG_SUFFIX)


def offsets_of(directory: Path, suffix: str) -> list[int]:
    """Return the offsets in the names of a directory's files with this suffix, ascending. Raises OSError."""
    return offsets_in(os.listdir(directory), suffix)  # noqa: PTH208 - only their names


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets in the names that end in the suffix, ascending."""
    return sorted(offset for name in names if (offset := parse_segment(name, suffix)) is not None)


READ_BYTES: Final = 1 << 20
TRIES: Final = 100


def batches_below(directory: Path, end: Partition) -> Iterator[Batch]:
    """Yield the batches below the high watermark, in order. Raises CorruptBatch or OSError."""
    if end.high_watermark == 0:
        return
    with ExitStack() as stack:
        next_offset = 0
        for base, file in _opened(directory, end.high_watermark_segment, stack):
            is_last = base == end.high_watermark_segment
            limit = end.high_watermark_position if is_last else os.fstat(file.fileno()).st_size
            for batch in batches_of(file, limit):
                # A segment may be listed together with those that it replaces.
                if batch.header.base_offset >= next_offset:
                    next_offset = batch.last_offset + 1
                    yield batch


def _opened(directory: Path, last_base: int, stack: ExitStack) -> list[tuple[int, BinaryIO]]:
    """Open all segments up to the one of `last_base`, ascending. Raises OSError.

    All segments are opened before any is read, since the cleaner may replace segments meanwhile. If the last
    segment is missing, the partition has moved to another log directory: OSError.
    """
    for _ in range(TRIES):
        paths = {base: directory / segment_name(base) for base in segments_of(directory) if base <= last_base}
        with suppress(FileNotFoundError):
            if last_base in paths:
                return [(base, stack.enter_context(path.open("rb"))) for base, path in paths.items()]
        stack.close()
    raise OSError(f"{directory} has no segment of offset {last_base}, or its segments change at each read")


def batches_of(file: BinaryIO, limit: int) -> Iterator[Batch]:
    """Yield the batches in the first `limit` bytes of a segment. Raises CorruptBatch or OSError."""
    carried = b""
    left = limit
    while left:
        piece = file.read(min(READ_BYTES, left))
        if not piece:
            raise OSError(f"{file.name} ends {left} bytes before its durable end")
        left -= len(piece)
        data = carried + piece
        used = 0
        for batch in iterate_batches(data):
            yield batch
            used = batch.header.position + batch.header.length
        carried = data[used:]
    if carried:
        raise CorruptBatch(limit - len(carried), f"{file.name} ends within a batch")
