"""All records of a buffer, and a batch of any: the broker itself always knows which batch it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpbroker.records.builder import with_records
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import Record
from mpbroker.records.stream import seal

if TYPE_CHECKING:
    from typing_extensions import Buffer

NOW = 1_700_000_000_000


def iterate_records(
    data: Buffer, *, check_crc: bool = True, limit: int = DEFAULT_LIMIT_BYTES
) -> Iterator[Record]:
    """The records of all whole batches but for control batches."""
    for batch in iterate_batches(data, check_crc=check_crc):
        if not batch.is_control:
            yield from batch.records(limit)


def sealed(stream: bytes, count: int, codec: Codec = Codec.NONE) -> bytearray:
    """A batch of a stream that is packed already."""
    batch = with_records(stream)
    seal(
        batch,
        base_offset=0,
        leader_epoch=-1,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return batch
