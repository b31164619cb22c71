"""Aborted transactions in `.txnindex` files, one file for each segment with abort markers.

    version i16 = 0 | producer_id i64 | first_offset i64 | last_offset i64 | last_stable_offset i64

Entries are appended. `last_offset` is the offset of the abort marker and grows from entry to entry.
`last_stable_offset` is the last stable offset after this marker. (Kafka: TransactionIndex, AbortedTxn;
KIP-98.)
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, overload

from mpbroker.storage.checkpoints import opened, read_whole, write_whole

_ENTRY = struct.Struct(">hqqqq")
LATEST_VERSION = 0
# Entries that are read at once, to be checked, and to be used.
_READ_ENTRIES = 4096
_TAKEN_ENTRIES = 256


class AbortedTransaction(NamedTuple):
    """An entry of a `.txnindex`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndexCorrupt(ValueError):
    """Raised for an invalid `.txnindex`, which would let aborted records look committed."""


class Entries(Protocol):
    """The entries of a `.txnindex`, in order."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, place: int, /) -> AbortedTransaction: ...
    @overload
    def __getitem__(self, places: slice, /) -> Sequence[AbortedTransaction]: ...


def read_aborted(path: Path | str, *, may_grow: bool = False) -> list[AbortedTransaction]:
    """Read all entries of a `.txnindex`. Raises TransactionIndexCorrupt, OSError.

    `may_grow` leaves out an incomplete last entry, which a log process may be writing.
    """
    data = read_whole(path)
    if may_grow:
        data = data[: len(data) // _ENTRY.size * _ENTRY.size]
    return aborted_in(data, path)


def aborted_in(data: bytes, path: Path | str) -> list[AbortedTransaction]:
    """Return the entries in the content of the `.txnindex` at `path`. Raises TransactionIndexCorrupt."""
    if len(data) % _ENTRY.size:
        raise TransactionIndexCorrupt(f"{path} ends within an entry, after {len(data)} bytes")
    return list(_checked(path, data))


def _checked(path: Path | str, data: bytes, last_marker: int = -1) -> Iterator[AbortedTransaction]:
    """Yield the entries in `data`, which follow a marker at `last_marker`. Raises TransactionIndexCorrupt."""
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version > LATEST_VERSION:
            raise TransactionIndexCorrupt(f"{path} has an entry of version {version}, not {LATEST_VERSION}")
        if entry.first_offset >= entry.last_offset:
            # A power cut may leave zeros where an entry was.
            raise TransactionIndexCorrupt(
                f"{path}: the transaction of {entry.first_offset} ends before it began"
            )
        if entry.last_offset <= last_marker:
            raise TransactionIndexCorrupt(f"{path}: the marker at {entry.last_offset} comes too late")
        last_marker = entry.last_offset
        yield entry


class AbortedIndex:
    """A `.txnindex` that stays open. Each entry is checked once; `read_on` checks newly appended entries.

    Entries are read from the file at each access and not kept in memory, since there may be very many.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and check its entries. Raises TransactionIndexCorrupt, OSError."""
        self._path = path
        self._count = 0
        self._last_marker = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check(os.fstat(self._fd).st_size)
        except BaseException:
            self.close()
            raise

    def read_on(self) -> bool:
        """Check new entries. Return False if the file was replaced or shortened. Raises like `__init__`."""
        try:
            now = os.stat(self._path)  # noqa: PTH116 - for each fetch
        except FileNotFoundError:
            return False
        if not os.path.samestat(now, os.fstat(self._fd)) or now.st_size < self._count * _ENTRY.size:
            return False
        self._check(now.st_size)
        return True

    def _check(self, size: int) -> None:
        """Check new entries up to the file size `size`. The last entry may still be being written."""
        while (at := self._count * _ENTRY.size) < size:
            data = os.pread(self._fd, _READ_ENTRIES * _ENTRY.size, at)
            whole = len(data) // _ENTRY.size
            if not whole and os.fstat(self._fd).st_size <= at + len(data):
                raise TransactionIndexCorrupt(
                    f"{self._path} ends within an entry, after {at + len(data)} bytes"
                )
            for entry in _checked(self._path, data[: whole * _ENTRY.size], self._last_marker):
                self._last_marker = entry.last_offset
            self._count += whole

    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        os.close(self._fd)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int, /) -> AbortedTransaction: ...
    @overload
    def __getitem__(self, places: slice, /) -> Sequence[AbortedTransaction]: ...
    def __getitem__(self, places: int | slice, /) -> AbortedTransaction | Sequence[AbortedTransaction]:
        if not isinstance(places, slice):
            return self[places : places + 1][0]
        start, stop, _ = places.indices(self._count)
        data = os.pread(self._fd, (stop - start) * _ENTRY.size, start * _ENTRY.size)
        if len(data) < (stop - start) * _ENTRY.size:
            raise TransactionIndexCorrupt(f"{self._path} became shorter than {self._count} entries")
        return [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(data)]


def packed(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encode entries for a `.txnindex`."""
    return b"".join(_ENTRY.pack(LATEST_VERSION, *entry) for entry in entries)


def replace_aborted(path: Path, entries: Iterable[AbortedTransaction]) -> None:
    """Replace the entries of a `.txnindex` durably, if they differ; without entries the file is removed.

    On OSError the file is unchanged. This matters because some of its entries exist nowhere else.
    """
    data = packed(entries)
    if not data:
        path.unlink(missing_ok=True)
        return
    if path.exists() and path.read_bytes() == data:
        return
    write_whole(path, data)


def add_aborted(path: Path, entry: AbortedTransaction) -> None:
    """Append an entry to a `.txnindex`. On OSError the file is unchanged."""
    with opened(path, os.O_WRONLY | os.O_CREAT) as fd:
        size = os.fstat(fd).st_size
        data = packed([entry])
        try:
            if os.pwrite(fd, data, size) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            os.ftruncate(fd, size)
            raise


def aborted_between(
    indexes: Iterable[Entries], start: int, end: int, first_end: Callable[[], int] = lambda: 0
) -> Iterator[AbortedTransaction]:
    """Yield the transactions that can have records in [start, end).

    `indexes` belong to the segment with `start` and the segments after it. `first_end` returns the end offset
    of the first segment. Later indexes' entries with markers below this offset are skipped: they are of
    segments that were just merged into the first segment.
    """
    for index in indexes:
        first = bisect_left(index, start, key=attrgetter("last_offset"))
        for place in range(first, len(index), _TAKEN_ENTRIES):
            for entry in index[place : place + _TAKEN_ENTRIES]:
                if entry.first_offset < end:
                    yield entry
                if entry.last_stable_offset >= end:
                    return
        start = max(start, first_end())
