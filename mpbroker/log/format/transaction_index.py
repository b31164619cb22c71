"""Aborted transactions in `.txnindex` files, one file for each segment with abort markers.

    version i16 = 0 | producer_id i64 | first_offset i64 | last_offset i64 | last_stable_offset i64

Entries are appended. `last_offset` is the marker's and grows from entry to entry; `last_stable_offset` is
the last stable offset after this marker. (Kafka: TransactionIndex, AbortedTxn; KIP-98.)
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from mpbroker.log.format.checkpoints import read_whole, write_whole

_ENTRY = struct.Struct(">hqqqq")
LATEST_VERSION = 0


class AbortedTransaction(NamedTuple):
    """An entry of a `.txnindex`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndexCorrupt(ValueError):
    """An index not to be used: a read_committed consumer would take aborted records for committed ones."""


def read_aborted(path: Path | str, *, may_grow: bool = False) -> list[AbortedTransaction]:
    """Read all entries of a `.txnindex`. Raises TransactionIndexCorrupt, OSError.

    `may_grow`: a log process may be writing to it, and an entry of which only a part is there is left out.
    """
    data = read_whole(path)
    if may_grow:
        data = data[: len(data) // _ENTRY.size * _ENTRY.size]
    if len(data) % _ENTRY.size:
        raise TransactionIndexCorrupt(f"{path} ends within an entry, after {len(data)} bytes")
    found: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version > LATEST_VERSION:
            raise TransactionIndexCorrupt(f"{path} has an entry of version {version}, not {LATEST_VERSION}")
        if entry.first_offset >= entry.last_offset:
            # A power cut may leave zeros where an entry was.
            raise TransactionIndexCorrupt(
                f"{path}: the transaction of {entry.first_offset} ends before it began"
            )
        if found and entry.last_offset <= found[-1].last_offset:
            raise TransactionIndexCorrupt(f"{path}: the marker at {entry.last_offset} comes too late")
        found.append(entry)
    return found


def packed(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encode entries for a `.txnindex`."""
    return b"".join(_ENTRY.pack(LATEST_VERSION, *entry) for entry in entries)


def replace_aborted(path: Path, entries: Iterable[AbortedTransaction]) -> None:
    """Replace the entries of a `.txnindex` durably, if they differ; without entries the file is removed.

    Raises OSError with the file as it was: some of its entries are found nowhere else.
    """
    data = packed(entries)
    if not data:
        path.unlink(missing_ok=True)
        return
    if path.exists() and path.read_bytes() == data:
        return
    write_whole(path, data)


def add_aborted(path: Path, entry: AbortedTransaction) -> None:
    """Append an entry to a `.txnindex`. Raises OSError with the file as it was."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        data = packed([entry])
        try:
            if os.pwrite(fd, data, size) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def aborted_between(
    indexes: Iterable[Sequence[AbortedTransaction]], start: int, end: int
) -> Iterator[AbortedTransaction]:
    """Yield the transactions that can have records in [start, end).

    `indexes` are those of the segments from the one with `start` on.
    """
    for index in indexes:
        for entry in index[bisect_left(index, start, key=attrgetter("last_offset")) :]:
            if entry.first_offset < end:
                yield entry
            if entry.last_stable_offset >= end:
                return
