"""Recognises messages of magic 0 and 1, which brokers before Kafka 0.11 wrote. mpbroker cannot read them.

Such a message begins with its offset (i64), the size of the rest (i32), a CRC-32 of all following bytes (u32)
and the magic (i8). (Kafka: LegacyRecord, KIP-724.)
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_HEAD: Final = struct.Struct(">qiIb")
HEAD_BYTES: Final = _HEAD.size
# The bytes from which the size counts, and which the CRC covers.
_SIZE_FROM: Final = 12
_CRC_FROM: Final = 16
# The size of a message of magic 0 without key and value (Kafka: LegacyRecord.RECORD_OVERHEAD_V0).
_SMALLEST: Final = 14


def old_length(head: bytes | memoryview) -> int:
    """Return how many bytes the old message that begins with `head` has; 0 if there is no such message."""
    if len(head) < HEAD_BYTES:
        return 0
    _, size, _, magic = _HEAD.unpack_from(head)
    return _SIZE_FROM + size if magic in (0, 1) and size >= _SMALLEST else 0


def old_magic(data: bytes | memoryview) -> int | None:
    """Return the magic, 0 or 1, if `data` begins with a whole old message, else None."""
    length = old_length(data)
    if not length or length > len(data):
        return None
    _, _, crc, magic = _HEAD.unpack_from(data)
    return int(magic) if zlib.crc32(data[_CRC_FROM:length]) == crc else None
