"""Record batches that are framed well and mean harm: headers that lie, bombs, very many headers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Final

import crc32c

from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord

# Kafka: DefaultRecordBatch. The checksum covers all that is behind it.
LENGTH_AT, MAGIC_AT, CRC_AT, CRC_FROM = 8, 16, 17, 21
COUNT_AT = 57
# Format and place of each field that the checksum covers, by its name.
COVERED: Final = {
    "attributes": (">h", 21),
    "last offset delta": (">i", 23),
    "base timestamp": (">q", 27),
    "max timestamp": (">q", 35),
    "producer id": (">q", 43),
    "producer epoch": (">h", 51),
    "base sequence": (">i", 53),
    "count": (">i", COUNT_AT),
}
NOW_MS = 1_700_000_000_000
BOMB_BYTES = 4 << 20
HEADERS = (1_000, 30_000)


def integers(size: int) -> tuple[int, ...]:
    """Return the numbers of so many bytes that programs are wrong about."""
    top = 1 << 8 * size - 1
    return (-top, -top + 1, -2, -1, 0, 1, 2, top - 2, top - 1)


def records(chance: random.Random) -> bytes:
    """Return the records of one partition of a Produce request."""
    return chance.choice(KINDS)(chance)


def sealed(batch: bytearray) -> bytes:
    """Return the batch with the length and the checksum that it should have."""
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LENGTH_AT - 4)
    struct.pack_into(">I", batch, CRC_AT, crc32c.crc32c(bytes(batch[CRC_FROM:])))
    return bytes(batch)


def _good(chance: random.Random) -> bytearray:
    some = [NewRecord(b"v" * (n % 5), b"k", NOW_MS + n) for n in range(chance.randrange(1, 20))]
    return build_batch(some, codec=chance.choice([*Codec]))


def _lying_header(chance: random.Random) -> bytes:
    batch = _good(chance)
    for name in chance.sample([*COVERED], chance.randrange(1, 4)):
        code, at = COVERED[name]
        struct.pack_into(code, batch, at, chance.choice(integers(struct.calcsize(code))))
    return sealed(batch)


def _uncovered_header(chance: random.Random) -> bytes:
    """Lie in what the checksum leaves out: base offset, leader epoch, magic, length."""
    batch = bytearray(sealed(_good(chance)))
    code, at = chance.choice(((">q", 0), (">i", LENGTH_AT), (">i", 12), (">b", MAGIC_AT), (">I", CRC_AT)))
    top = 1 << 8 * struct.calcsize(code)
    value = chance.choice(integers(struct.calcsize(code)))
    struct.pack_into(code, batch, at, value % top if code == ">I" else value)
    return bytes(batch)


def _several(chance: random.Random) -> bytes:
    return b"".join(sealed(_good(chance)) for _ in range(chance.choice((2, 100))))


def _cut(chance: random.Random) -> bytes:
    whole = sealed(_good(chance))
    return whole[: chance.randrange(len(whole))]


def _bomb(chance: random.Random) -> bytes:
    """Return a few kilobytes that decompress to megabytes."""
    codec = chance.choice((Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY))
    return bytes(build_batch([NewRecord(bytes(BOMB_BYTES))], codec=codec))


def _many_headers(chance: random.Random) -> bytes:
    one = (("", None),) * chance.choice(HEADERS)
    return bytes(build_batch([NewRecord(b"v", None, NOW_MS, one)], codec=chance.choice([*Codec])))


def _many_records(chance: random.Random) -> bytes:
    some = [NewRecord(None, None, NOW_MS)] * chance.choice((1_000, 20_000))
    return bytes(build_batch(some, codec=chance.choice([*Codec])))


def _garbage_inside(chance: random.Random) -> bytes:
    """Return a batch whose header and checksum are right, and nothing behind them."""
    batch = _good(chance)
    for _ in range(chance.randrange(1, 8)):
        batch[chance.randrange(COUNT_AT + 4, len(batch))] = chance.randrange(256)
    return sealed(batch)


def _of_a_producer(chance: random.Random) -> bytes:
    batch = build_batch(
        [NewRecord(b"v", b"k", NOW_MS)],
        producer_id=chance.choice((0, 1, 2, 1 << 40, chance.randrange(1 << 62))),
        producer_epoch=chance.choice((0, 1, (1 << 15) - 1)),
        base_sequence=chance.choice((0, 1, (1 << 31) - 1)),
        transactional=chance.random() < 0.3,
        control=chance.random() < 0.1,
    )
    return bytes(batch)


def _strange_times(chance: random.Random) -> bytes:
    some = [NewRecord(b"v", None, chance.choice(integers(8)[2:])) for _ in range(3)]
    return bytes(build_batch(some))


KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    lambda chance: sealed(_good(chance)),
    _lying_header,
    _lying_header,
    _uncovered_header,
    _several,
    _cut,
    _bomb,
    _many_headers,
    _many_records,
    _garbage_inside,
    _of_a_producer,
    _strange_times,
    lambda chance: chance.randbytes(chance.choice((0, 1, 61, 200))),
)
