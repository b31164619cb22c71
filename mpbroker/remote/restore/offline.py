"""Brings a cut's files of offline log directories to what was shipped since (mpbroker.remote.acks=ledger).

Nobody can read the directories any more. A cut has their files, and the ledger what was appended since, so
the next cut has both. `ShippedFiles` works on a scratch directory, whose segments have holes where nothing
changes. Only what it has changed is uploaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.bundles import Bundler, tail_crc
from mpbroker.remote.cuts.files import Found, find_file
from mpbroker.remote.cuts.instant import CutSkipped, opened_files
from mpbroker.remote.cuts.manifest import CutFile, CutManifest, Piece, bundle_name, log_dir_of
from mpbroker.remote.ledger.events import Shipped
from mpbroker.remote.restore.plan import RestoreRefused
from mpbroker.remote.restore.shipped import ShippedFiles, bytes_of
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.storage.checkpoints import write_all_at
from mpbroker.storage.names import HIGH_WATERMARKS, LOG_STARTS, PARTITION_METADATA, RECOVERY_POINTS

# What `ShippedFiles` reads. Of other files the names and sizes are enough.
_READ: Final = frozenset({HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, PARTITION_METADATA})


def bring_forward(
    store: ObjectStore,
    bundler: Bundler,
    newest: CutManifest,
    offline: Container[int],
    events: Sequence[Shipped],
    scratch: Path,
) -> CutManifest:
    """Return a cut with what `events` have of the log directories with the numbers `offline`.

    Its other directories are as they were. `scratch` must not exist, and is removed by the caller. Raises
    CutSkipped, StoreError, OSError.
    """
    ranges = (one.directory for event in events for one in event.ranges)
    touched = {_name_in(path) for path in ranges if log_dir_of(path) in offline}
    if not touched:
        return newest
    roots = [scratch / str(number) for number in range(len(newest.log_dirs))]
    for path in [*map(str, range(len(roots))), *newest.directories]:
        if "/" not in path or (log_dir_of(path) in offline and _name_in(path) in touched):
            (scratch / path).mkdir(parents=True)
    laid = {
        file.path: file
        for file in newest.files
        if log_dir_of(file.path) in offline and (scratch / file.path).parent.is_dir()
    }
    for file in laid.values():
        _lay_out(store, file, scratch / file.path)
    files = ShippedFiles(store, roots)
    changed: dict[str, int] = {}
    try:
        for path, position in _applied(store, files, events, offline):
            changed[path] = min(position, changed.get(path, position))
    except RestoreRefused as error:
        raise CutSkipped(str(error)) from error
    made = _upload(store, bundler, scratch, laid, changed)
    others = [one for one in newest.files if one.path not in laid]
    return replace(
        newest,
        directories=list(dict.fromkeys([*newest.directories, *files.made])),
        # A directory that was made is another topic's than the cut's of that name.
        remote=[one for one in newest.remote if one.directory not in files.made],
        ends=[one for one in newest.ends if one.directory not in files.made],
        files=[*others, *made],
    )


def _applied(
    store: ObjectStore, files: ShippedFiles, events: Iterable[Shipped], offline: Container[int]
) -> Iterator[tuple[str, int]]:
    """Apply what events have of the offline directories; yield what has changed, and from where on."""
    for event in events:
        data, ranges, parts = memoryview(bytes_of(store, event)), [], []
        for one in event.ranges:
            size = sum(length for _, _, length in one.pieces)
            if log_dir_of(one.directory) in offline:
                ranges.append(one)
                parts.append(data[:size])
            data = data[size:]
        yield from files.apply(Shipped(event.number, tuple(ranges), b"".join(parts)))
    yield from files.finish()


def _lay_out(store: ObjectStore, file: CutFile, path: Path) -> None:
    """Make a file of the cut's size, with its bytes if somebody reads them."""
    is_read = path.name in _READ
    path.write_bytes(b"".join(_fetch(store, one) for one in file.pieces) if is_read else b"")
    os.truncate(path, file.size)


def _fetch(store: ObjectStore, piece: Piece) -> bytes:
    data = store.get(bundle_name(piece.bundle), piece.position, piece.length)
    if len(data) != piece.length or checksum(data) != piece.crc:
        raise StoreError(f"{bundle_name(piece.bundle)} is damaged at byte {piece.position}")
    return data


def _upload(
    store: ObjectStore,
    bundler: Bundler,
    scratch: Path,
    laid: dict[str, CutFile],
    changed: dict[str, int],
) -> list[CutFile]:
    """Bring what has changed into bundles; return all files that are there now."""
    same: list[CutFile] = []
    founds: list[Found] = []
    known: dict[str, CutFile] = {}
    for real_path in sorted(scratch.glob("*/**/*")):
        path = str(real_path.relative_to(scratch))
        file = laid.get(path)
        if file is not None and path not in changed:
            same.append(file)
        elif (found := find_file(path, str(real_path))) is not None:
            founds.append(found)
            if file is not None:
                known[path] = _begun(store, file, found, changed[path])
    with opened_files(founds) as opened:
        made = bundler.add(opened, known, time.time_ns())
    # No file on a disk is known by these.
    return [*same, *(replace(one, inode=0, changed_ns=0) for one in made)]


def _begun(store: ObjectStore, file: CutFile, found: Found, position: int) -> CutFile:
    """Return the pieces of a file that lie before `position`, and fill the hole between them and it."""
    pieces: list[Piece] = []
    size = 0
    with Path(found.real_path).open("r+b", buffering=0) as there:
        for piece in file.pieces:
            if size + piece.length > position:
                write_all_at(there.fileno(), _fetch(store, piece)[: position - size], size)
                break
            pieces.append(piece)
            size += piece.length
        return CutFile(file.path, size, found.inode, 0, tail_crc(there.fileno(), size), tuple(pieces))


def _name_in(path: str) -> str:
    """Return the name that a partition's directory has in its log directory."""
    return path.partition("/")[2]
