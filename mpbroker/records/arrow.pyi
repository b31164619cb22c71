"""Record batches of a memory range, decoded straight into buffers of Apache Arrow's layout."""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from typing_extensions import Buffer

from mpbroker.records.aborted import AbortedRanges

COLUMNS: Final[tuple[str, ...]]

class FixedBuffers(NamedTuple):
    data: Any

class BinaryBuffers(NamedTuple):
    nulls: int
    validity: Any
    offsets: Any
    data: Any

class HeaderBuffers(NamedTuple):
    nulls: int
    validity: Any
    lists: Any
    header_count: int
    key: BinaryBuffers
    value: BinaryBuffers

def decode_range(
    buf: Buffer,
    pos: int,
    end: int,
    lo_offset: int,
    hi_offset: int,
    max_rows: int,
    max_bytes: int,
    columns: Collection[str] = ...,
    *,
    check_crc: bool = True,
    decompressed_limit: int = ...,
    aborted: AbortedRanges | None = None,
) -> tuple[int, int, dict[str, FixedBuffers | BinaryBuffers | HeaderBuffers]]: ...
