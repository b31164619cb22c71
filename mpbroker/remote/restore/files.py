"""Writes the log directories of a cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpbroker.config.integers import LONG_MAX
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.manifest import bundle_name
from mpbroker.remote.ledger.state import segments_file
from mpbroker.remote.restore.plan import READERS, PlacedPiece, Plan, pieces_by_bundle
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.storage.checkpoints import (
    fsync_directory,
    opened,
    read_epochs,
    write_all_at,
    write_epochs,
)
from mpbroker.storage.names import META_PROPERTIES
from mpbroker.storage.remote_segments import write_remote_segments

_DIRECTORY_MODE: Final = 0o750


def write_files(
    store: ObjectStore, plan: Plan, log_dirs: Sequence[Path], seen: Callable[[int], object]
) -> None:
    """Write all files but meta.properties: no broker starts on what is not finished.

    The directories exist, and are empty. `seen(count)` is called with bytes downloaded. Raises StoreError,
    OSError.
    """
    for path in plan.manifest.directories:
        _place(log_dirs, path).mkdir(_DIRECTORY_MODE)
    for file in plan.manifest.files:
        with opened(_place(log_dirs, file.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL):
            pass
    by_bundle = pieces_by_bundle(plan.manifest)

    def write(bundle: bytes) -> None:
        data = store.get(bundle_name(bundle))
        _write_pieces(data, bundle_name(bundle), by_bundle[bundle], log_dirs)
        seen(len(data))

    with ThreadPoolExecutor(READERS) as readers:
        for _ in readers.map(write, by_bundle):
            pass
    for file in plan.manifest.files:
        with opened(_place(log_dirs, file.path)) as fd:
            if (size := os.fstat(fd).st_size) != file.size:
                raise StoreError(f"{_place(log_dirs, file.path)} has {size} of {file.size} bytes")
            os.fsync(fd)
    for directory, segments in plan.segments.items():
        if segments:
            write_remote_segments(_place(log_dirs, directory), segments_file(segments))
    for path in (*plan.manifest.directories, *map(str, range(len(log_dirs)))):
        fsync_directory(_place(log_dirs, path))


def begin_epochs(plan: Plan, log_dirs: Sequence[Path]) -> None:
    """Have every partition begin a leader epoch where its log ends, when it is opened. Raises OSError.

    So a client that has read further sees that its offsets are no more, and not other records there. Epochs
    grow by as much as the ledger's generation since the cut: an owner between, which came from the same cut,
    has given its records another one.
    """
    ahead = plan.ledger.generation - plan.generation
    for path in plan.manifest.directories:
        directory = _place(log_dirs, path)
        with suppress(FileNotFoundError):
            epochs = read_epochs(directory)
            write_epochs(directory, [*epochs, (epochs[-1][0] + ahead if epochs else ahead, LONG_MAX)])


def finish(log_dirs: Iterable[Path]) -> None:
    """Give the directories their names as a broker's. Raises OSError."""
    for log_dir in log_dirs:
        (log_dir / _unfinished(META_PROPERTIES)).rename(log_dir / META_PROPERTIES)
        fsync_directory(log_dir)


def _place(log_dirs: Sequence[Path], path: str) -> Path:
    number, _, name = path.partition("/")
    return log_dirs[int(number)] / (_unfinished(name) if name == META_PROPERTIES else name)


def _unfinished(name: str) -> str:
    return f"{name}.restored"


def _write_pieces(data: bytes, name: str, pieces: Iterable[PlacedPiece], log_dirs: Sequence[Path]) -> None:
    whole = memoryview(data)
    for piece, path, at in pieces:
        part = whole[piece.position : piece.position + piece.length]
        if len(part) != piece.length or checksum(part) != piece.crc:
            raise StoreError(f"{name} is damaged at byte {piece.position}: its checksum does not match")
        with opened(_place(log_dirs, path), os.O_WRONLY) as fd:
            write_all_at(fd, part, at)
