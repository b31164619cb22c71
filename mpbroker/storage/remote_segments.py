"""The file `mpbroker.remote` of a partition's directory: which segments the object store has.

    magic          8 bytes
    checksum       u32, CRC-32C of what follows
    count          u32
    segments       64 bytes each: base, end, size, largest timestamp (i64), segment id (16 bytes), zeros

The tier process alone writes the file, always as a whole, and only what the ledger has: a local segment may
be deleted once its offsets are in here. Log workers and handlers read it again when the partition's word in
`remote` has changed. The file can always be made again from the ledger.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.records.batch import checksum
from mpbroker.storage.checkpoints import CheckpointCorrupt, write_whole
from mpbroker.storage.names import REMOTE_SEGMENTS

MAGIC: Final = b"MPBKRMT0"
_HEAD: Final = struct.Struct("<8sII")
_SEGMENT: Final = struct.Struct("<qqqq16s16x")


class RemoteSegment(NamedTuple):
    """A segment in the object store: offsets [base, end), the bytes of its `.log`, its largest timestamp.

    `segment_id` is the id in the names of its objects.
    """

    base: int
    end: int
    size: int
    largest_ms: int
    segment_id: bytes


class RemoteSegments(tuple[RemoteSegment, ...]):
    """The segments of a partition, in the order of their offsets. None overlaps another one."""

    __slots__ = ()

    @property
    def start(self) -> int:
        """Return the first offset; 0 if there are no segments."""
        return self[0].base if self else 0

    @property
    def end(self) -> int:
        """Return the last offset + 1; 0 if there are no segments. Local segments below it may be deleted."""
        return self[-1].end if self else 0

    def first_offset(self, local_start: int) -> int:
        """Return the first offset of a log whose first local segment begins at `local_start`."""
        return min(self.start, local_start) if self else local_start

    def find(self, offset: int) -> RemoteSegment | None:
        """Return the segment with the first record at or after an offset; None if all end before it."""
        at = max(bisect_right(self, offset, key=_base) - 1, 0)
        return next((segment for segment in self[at : at + 2] if segment.end > offset), None)


NO_SEGMENTS: Final = RemoteSegments()


def _base(segment: RemoteSegment) -> int:
    return segment.base


def read_remote_segments(directory: Path) -> RemoteSegments:
    """Read a partition's file; no segments if there is no file. Raises CheckpointCorrupt, OSError."""
    path = directory / REMOTE_SEGMENTS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return NO_SEGMENTS
    if len(data) < _HEAD.size:
        raise CheckpointCorrupt(f"{path} is damaged: it has only {len(data)} bytes")
    magic, expected, count = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != MAGIC or len(body) != count * _SEGMENT.size or checksum(body) != expected:
        raise CheckpointCorrupt(f"{path} is damaged: its checksum does not match")
    return RemoteSegments(RemoteSegment(*fields) for fields in _SEGMENT.iter_unpack(body))


def encode_remote_segments(segments: Sequence[RemoteSegment]) -> bytes:
    """Return the bytes of a partition's file."""
    body = b"".join(_SEGMENT.pack(*segment) for segment in segments)
    return _HEAD.pack(MAGIC, checksum(body), len(segments)) + body


def write_remote_segments(directory: Path, segments: Sequence[RemoteSegment]) -> None:
    """Replace a partition's file, durably. Raises OSError."""
    write_whole(directory / REMOTE_SEGMENTS, encode_remote_segments(segments))
