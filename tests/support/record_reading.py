"""All records of a buffer, for tests: the broker itself always knows which batch it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpbroker.records.compression import DEFAULT_LIMIT_BYTES
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer


def iterate_records(
    data: Buffer, *, check_crc: bool = True, limit: int = DEFAULT_LIMIT_BYTES
) -> Iterator[Record]:
    """The records of all whole batches but for control batches."""
    for batch in iterate_batches(data, check_crc=check_crc):
        if not batch.is_control:
            yield from batch.records(limit)
