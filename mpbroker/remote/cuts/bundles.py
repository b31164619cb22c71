"""Brings the bytes that the store does not have yet into bundles.

A file that only grows (`files.APPENDED`) is known up to its former size if it is the same inode and its last
bytes before that size are the same: the log cuts off what a full disk did not take, and goes on. Of other
files, and of those with too many pieces, all bytes go into a bundle again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mpbroker.log.io import background_io
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.files import Found
from mpbroker.remote.cuts.manifest import CutFile, Piece, bundle_name, live_bytes, new_id
from mpbroker.remote.store.object_store import ObjectStore

T = TypeVar("T")

BUNDLE_BYTES: Final = 64 << 20
PIECES_MAX: Final = 32
# A bundle of which less than this part is named goes: what is left of it is uploaded again.
LIVE_PART: Final = 4
# These last bytes of a file must be as they were.
TAIL_BYTES: Final = 4 << 10
# ctime counts in ticks: what has changed in the same one has the same time.
UNSURE_NS: Final = 1_000_000_000
_READ_BYTES: Final = 256 << 10


class FileChanged(OSError):
    """A file has become shorter while it was read: the cut cannot be finished."""


class Opened(NamedTuple):
    """A file that has to be read, and its descriptor."""

    found: Found
    fd: int


class _Range(NamedTuple):
    """Bytes of a file, at most BUNDLE_BYTES."""

    opened: Opened
    start: int
    length: int


def is_same(known: CutFile | None, found: Found) -> bool:
    """Return whether a file is as it was, judged by inode, size and time."""
    return known is not None and (known.size, known.inode, known.changed_ns) == (
        found.size,
        found.inode,
        found.changed_ns,
    )


def worth_keeping(files: Mapping[str, CutFile], bundles: Mapping[bytes, int]) -> dict[str, CutFile]:
    """Return the files without those that are to be uploaded again. `bundles`: sizes by id."""
    live = live_bytes(files.values())
    wasted = {one for one, count in live.items() if count * LIVE_PART < bundles[one]}
    return {
        path: file
        for path, file in files.items()
        if len(file.pieces) <= PIECES_MAX and not any(piece.bundle in wasted for piece in file.pieces)
    }


def recognized(file: CutFile, real_path: Path) -> CutFile | None:
    """Return the part of a cut's file whose bytes the file on disk has; None if it cannot be read.

    Checksums decide: inode and times mean nothing after a restart of the machine, or on another one.
    """
    pieces: list[Piece] = []
    size = 0
    try:
        with real_path.open("rb", buffering=0) as there:
            fd, found = there.fileno(), os.fstat(there.fileno())
            for piece in file.pieces:
                if crc_of(fd, size, piece.length) != piece.crc:
                    break
                pieces.append(piece)
                size += piece.length
            return CutFile(file.path, size, found.st_ino, 0, tail_crc(fd, size), tuple(pieces))
    except OSError:
        return None


class Bundler:
    """Reads files and writes bundles. `paced(count)` is called for each piece read, and may raise to give up.

    The size of each bundle is put into `written`, by its id, before the bundle is in the store.
    """

    def __init__(self, store: ObjectStore, paced: Callable[[int], None], written: dict[bytes, int]) -> None:
        self._store = store
        self._paced = paced
        self._written = written

    def add(self, files: Iterable[Opened], known: Mapping[str, CutFile], now_ns: int) -> list[CutFile]:
        """Bring the new bytes of these files into the store; return the files.

        `now_ns` is when they were looked at, by the clock that their times are of. Raises FileChanged,
        OSError, StoreError, and what `paced` raises.
        """
        files = list(files)
        begun = [_kept(one, known.get(one.found.path)) for one in files]
        # Before the bytes are read: if they change meanwhile, these are no longer the file's.
        tails = [tail_crc(one.fd, one.found.size) for one in files]
        ranges = [
            part
            for one, kept in zip(files, begun, strict=True)
            for part in _ranges(one, sum(piece.length for piece in kept))
        ]
        added: dict[str, list[Piece]] = {}
        for some in in_groups(ranges, lambda part: part.length, BUNDLE_BYTES):
            for part, piece in zip(some, self._write(some), strict=True):
                added.setdefault(part.opened.found.path, []).append(piece)
        return [
            _made(one.found, tail, (*kept, *added.get(one.found.path, ())), now_ns)
            for one, tail, kept in zip(files, tails, begun, strict=True)
        ]

    def _write(self, ranges: Sequence[_Range]) -> list[Piece]:
        bundle, size = new_id(), sum(part.length for part in ranges)
        crcs: list[int] = []
        self._written[bundle] = size
        self._store.put(bundle_name(bundle), self._read(ranges, crcs), size)
        pieces, position = [], 0
        for part, crc in zip(ranges, crcs, strict=True):
            pieces.append(Piece(bundle, position, part.length, crc))
            position += part.length
        return pieces

    def _read(self, ranges: Sequence[_Range], crcs: list[int]) -> Iterator[bytes]:
        for opened, start, length in ranges:
            crc, end = 0, start + length
            while start < end:
                data, _ = background_io.read(
                    opened.fd, min(end - start, _READ_BYTES), start, leaves_cache=True
                )
                if not data:
                    raise FileChanged(f"{opened.found.real_path} has become shorter while it was read")
                self._paced(len(data))
                crc = checksum(data, crc)
                start += len(data)
                yield data
            crcs.append(crc)


def _kept(opened: Opened, known: CutFile | None) -> tuple[Piece, ...]:
    """Return the pieces of a file that still are its first ones."""
    found, fd = opened
    if known is None or known.inode != found.inode or not found.is_appended or known.size > found.size:
        return ()
    return known.pieces if tail_crc(fd, known.size) == known.tail_crc else ()


def _ranges(opened: Opened, start: int) -> Iterator[_Range]:
    for at in range(start, opened.found.size, BUNDLE_BYTES):
        yield _Range(opened, at, min(opened.found.size - at, BUNDLE_BYTES))


def in_groups(parts: Iterable[T], size_of: Callable[[T], int], bytes_max: int) -> Iterator[list[T]]:
    """Yield parts in groups of at most `bytes_max` bytes; a part of more is a group of its own."""
    some: list[T] = []
    size = 0
    for one in parts:
        if some and size + size_of(one) > bytes_max:
            yield some
            some, size = [], 0
        some.append(one)
        size += size_of(one)
    if some:
        yield some


def _made(found: Found, tail: int, pieces: tuple[Piece, ...], now_ns: int) -> CutFile:
    is_sure = now_ns - found.changed_ns > UNSURE_NS
    changed_ns = found.changed_ns if is_sure else 0
    return CutFile(found.path, found.size, found.inode, changed_ns, tail, pieces)


def tail_crc(fd: int, size: int) -> int:
    """Return the CRC-32C of the last bytes of a file of this size. Raises OSError."""
    start = max(size - TAIL_BYTES, 0)
    return checksum(os.pread(fd, size - start, start))


def crc_of(fd: int, start: int, length: int) -> int | None:
    """Return the CRC-32C of bytes of a file, None if it is shorter. Raises OSError."""
    crc, end = 0, start + length
    while start < end:
        data, _ = background_io.read(fd, min(end - start, _READ_BYTES), start, leaves_cache=True)
        if not data:
            return None
        crc = checksum(data, crc)
        start += len(data)
    return crc
