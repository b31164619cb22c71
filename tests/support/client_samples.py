"""The records that every client writes and reads back, and their comparison."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CREATE_TIME_MS = 1_700_000_000_000
VALUE_BYTES_MAX = 2_000

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Record:
    """A record as the writer hands it over. Records of one partition stand in the order they are sent in."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True)
class Stored:
    """A record as a reader gets it."""

    offset: int
    record: Record


def sample_records(partitions: int, count: int, seed: int) -> list[Record]:
    """Null, empty, binary and compressible keys and values; no, one and repeated headers; unordered times.

    No record has neither key nor value: some clients refuse to send one.
    """
    chance = random.Random(seed)

    def sample(number: int) -> Record:
        size = chance.randrange(VALUE_BYTES_MAX)
        key = chance.choice([None, b"", b"key-%d" % number, chance.randbytes(20)])
        value = chance.choice([None, b"", b"\0\xff\n", chance.randbytes(size), b"mpbroker " * (size // 9)])
        headers: Headers = chance.choice(
            [(), (), (("kind", b"sample"),), (("a", b"1"), ("a", b"2"), ("empty", b""))]
        )
        if key is None and value is None:
            value = b""
        timestamp_ms = CREATE_TIME_MS + chance.randrange(-1000, 1000)
        return Record(number % partitions, key, value, headers, timestamp_ms)

    return [sample(number) for number in range(count)]


def stored_in(records: Iterable[Record], first_offset: int = 0) -> dict[int, list[Stored]]:
    """Return how each partition must read if it was empty and each record took one offset."""
    partitions: dict[int, list[Stored]] = {}
    for record in records:
        partition = partitions.setdefault(record.partition, [])
        partition.append(Stored(first_offset + len(partition), record))
    return partitions


def by_partition(stored: Iterable[Stored]) -> dict[int, list[Stored]]:
    """Return what a reader got from each partition, in the order it got it in."""
    partitions: dict[int, list[Stored]] = {}
    for each in stored:
        partitions.setdefault(each.record.partition, []).append(each)
    return partitions


def expected_offsets(records: Sequence[Record]) -> list[int]:
    """The offset that each record must have been acknowledged with."""
    ends: dict[int, int] = {}
    offsets = []
    for record in records:
        offsets.append(ends.get(record.partition, 0))
        ends[record.partition] = offsets[-1] + 1
    return offsets
