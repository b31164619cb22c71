"""Reading a partition of the broker's own in place, up to the durable end that the partition table names.

What lies behind the high watermark is not there for us. A piece at a time: whoever takes the batches one by
one can do something else in between, and no segment has to fit into memory. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mpbroker.ipc.table import Partition
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch, iterate_batches

READ_BYTES: Final = 1 << 20


def batches_below(directory: Path, end: Partition) -> Iterator[Batch]:
    """The batches below the high watermark, in order. Raises CorruptBatch or OSError."""
    if end.high_watermark == 0:
        return
    for path in sorted(directory.glob("*.log")):
        base = int(path.stem)
        if base > end.high_watermark_segment:
            return
        is_last = base == end.high_watermark_segment
        yield from _batches_of(path, end.high_watermark_position if is_last else path.stat().st_size)


def _batches_of(path: Path, limit: int) -> Iterator[Batch]:
    carried = b""
    left = limit
    with path.open("rb") as file:
        while left:
            piece = file.read(min(READ_BYTES, left))
            if not piece:
                raise OSError(f"{path} ends {left} bytes before the end of what is durable")
            left -= len(piece)
            data = carried + piece
            used = 0
            for batch in iterate_batches(data):
                yield batch
                used = batch.header.position + batch.header.length
            carried = data[used:]
    if carried:
        raise CorruptBatch(limit - len(carried), f"{path} ends within a batch")
