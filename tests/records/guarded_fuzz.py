"""Reads thousands of damaged batches that lie against a page that cannot be read; a program for test_fuzz.py.

An access outside of the bytes given kills the process with SIGSEGV. The seed is fixed; it takes the rounds.
"""

import ctypes
import mmap
import random
import struct
import sys

from mpbroker.records.arrow import decode_range
from mpbroker.records.batch import CRC_AT, CRC_COVERS_FROM, checksum, scan_batch
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch, InvalidRecords
from mpbroker.records.record import NewRecord
from mpbroker.records.unpack import BatchUnpacker
from mpbroker.records.validation import TopicPolicy, validate
from tests.support.record_reading import iterate_records

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
LIMIT = 1 << 20
UNPACKER = BatchUnpacker()


class Guarded:
    """Pages between two that cannot be read. Bytes may be put to lie against either."""

    def __init__(self, pages: int) -> None:
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (0, pages + 1):
            if libc.mprotect(ctypes.c_void_p(address + page * PAGE), PAGE, NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.end = (pages + 1) * PAGE

    def against_the_end(self, data: bytes) -> memoryview:
        self.map[self.end - len(data) : self.end] = data
        return memoryview(self.map)[self.end - len(data) : self.end]

    def against_the_start(self, data: bytes) -> memoryview:
        self.map[PAGE : PAGE + len(data)] = data
        return memoryview(self.map)[PAGE : PAGE + len(data)]


def seeds() -> list[bytes]:
    headers = (("name", b"value"), ("none", None), ("", b""))
    records = [
        NewRecord(b"v" * size, b"k" * (size % 7), 1000 + size, headers[: size % 4]) for size in range(30)
    ]
    batches = [bytes(build_batch(records, codec=codec)) for codec in Codec]
    batches.append(bytes(build_batch([NewRecord(None)])))
    batches.append(bytes(build_batch([NewRecord(b"x" * 300, None, 1 << 50)])))
    return batches


def mutate(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = (
            chance.randrange(8, len(data))
            if chance.random() < 0.3
            else chance.randrange(min(57, len(data) - 1), len(data))
        )
        data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    if chance.random() < 0.7 and len(data) > CRC_COVERS_FROM:
        struct.pack_into(">i", data, 8, len(data) - 12)
    if len(data) > CRC_COVERS_FROM:
        struct.pack_into(">I", data, CRC_AT, checksum(memoryview(data)[CRC_COVERS_FROM:]))
    return bytes(data)


def read_all_ways(view: memoryview) -> bool:
    """Whether the validator accepts it; any error but the two of this package is a failure."""
    scan_batch(view)
    UNPACKER.scan(view)
    for check_crc in (True, False):
        try:
            for _ in iterate_records(view, check_crc=check_crc, limit=LIMIT):
                pass
        except CorruptBatch:
            pass
        position, rows = 0, 1
        try:
            while rows:
                position, rows, _ = decode_range(
                    view,
                    position,
                    len(view),
                    -(1 << 63),
                    (1 << 63) - 1,
                    10,
                    1000,
                    check_crc=check_crc,
                    decompressed_limit=LIMIT,
                )
        except CorruptBatch:
            pass
    try:
        validate(view, TopicPolicy(max_decompressed_bytes=LIMIT), now_ms=2000)
    except InvalidRecords:
        return False
    return True


def main(rounds: int) -> None:
    chance = random.Random(20260101)
    guarded, batches = Guarded(4), seeds()
    accepted = 0
    for seed in batches:
        for size in range(len(seed)):
            read_all_ways(guarded.against_the_end(seed[:size]))
    for index in range(rounds):
        place = guarded.against_the_start if index % 4 == 0 else guarded.against_the_end
        accepted += read_all_ways(place(mutate(batches[index % len(batches)], chance)))
    print(accepted)


if __name__ == "__main__":
    main(int(sys.argv[1]))
