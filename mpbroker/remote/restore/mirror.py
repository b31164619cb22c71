"""Makes log directories equal to a cut, from whatever files they have.

A piece of a file whose checksum matches is not downloaded again. So a mirror follows one cut after the other,
and an empty directory becomes a restored one. The process may be killed anywhere: the next one begins with
what it finds. Until all is done no broker starts on the directories, since meta.properties has the name of an
unfinished restore.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.ipc.pointer import LOCK
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.bundles import crc_of
from mpbroker.remote.cuts.manifest import CutFile, CutManifest, bundle_name
from mpbroker.remote.restore.plan import READERS, PlacedPiece
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.storage.checkpoints import fsync_directory, opened, write_all_at
from mpbroker.storage.names import META_PROPERTIES, NOT_PARTITIONS

_DIRECTORY_MODE: Final = 0o750
# Two pieces of a bundle with a gap up to this size are downloaded by one request, with the gap.
_GAP_BYTES: Final = 256 << 10
_RUN_BYTES: Final = 64 << 20


class _Run(NamedTuple):
    """Bytes of a bundle that one request downloads, and the pieces in them."""

    bundle: bytes
    start: int
    end: int
    pieces: list[PlacedPiece]


class Mirror:
    """Log directories that follow cuts.

    Threads call `seen(count)` with the bytes of each download, the caller's thread with 0 now and then. It
    may raise to give up. `kept` are names of files in log directories that do not belong to the mirror, and
    stay.

    If `is_read`, others read the files through links meanwhile (`standby/replica.py`). Then a file only
    grows: one that differs is made anew beside, and takes its name when it is whole. So a link to the former
    file, an open file and a mapping keep what they had.
    """

    def __init__(
        self,
        store: ObjectStore,
        log_dirs: Sequence[Path],
        seen: Callable[[int], object] = lambda _count: None,
        kept: Iterable[str] = (),
        *,
        is_read: bool = False,
    ) -> None:
        self._is_read = is_read
        self._store = store
        self._log_dirs = log_dirs
        self._seen = seen
        self._kept = NOT_PARTITIONS | {LOCK, *kept}
        # By path: the files that this process has made or compared.
        self._known: dict[str, CutFile] = {}
        self._unsynced: set[Path] = set(log_dirs)
        # Paths of files that are made anew beside the ones with their names.
        self._beside: set[str] = set()
        # What `apply` still has to download.
        self.left_bytes = 0

    def apply(self, manifest: CutManifest) -> None:
        """Make the directories those of a cut, durably. Raises ObjectMissing, StoreError, OSError."""
        for log_dir in self._log_dirs:
            (log_dir / META_PROPERTIES).unlink(missing_ok=True)
        self._remove_others(manifest)
        for path in manifest.directories:
            directory = place(self._log_dirs, path)
            if not directory.is_dir():
                directory.mkdir(_DIRECTORY_MODE)
                self._unsynced |= {directory, directory.parent}
        changed = [one for one in manifest.files if self._known.get(one.path) != one]
        wanted = [piece for file in changed for piece in self._compare(file)]
        self.left_bytes = sum(one.piece.length for one in wanted)
        runs = list(_runs(wanted))
        with ThreadPoolExecutor(READERS) as readers:
            for run, _ in zip(runs, readers.map(self._download, runs), strict=True):
                self.left_bytes -= sum(one.piece.length for one in run.pieces)
                self._seen(0)
        for file in changed:
            self._settle(file)
        while self._unsynced:
            directory = self._unsynced.pop()
            if directory.exists():
                fsync_directory(directory)

    def touched(self, path: str, position: int) -> None:
        """Note that a file was changed from `position` on, beyond the cut."""
        known = self._known.pop(path, None)
        if known is not None and position >= sum(piece.length for piece in known.pieces):
            self._known[path] = msgspec.structs.replace(known, size=-1)

    def _remove_others(self, manifest: CutManifest) -> None:
        directories, named = set(manifest.directories), {one.path for one in manifest.files}
        for number, log_dir in enumerate(self._log_dirs):
            named.add(f"{number}/{unfinished(META_PROPERTIES)}")
            for entry in list(os.scandir(log_dir)):
                path, is_directory = f"{number}/{entry.name}", entry.is_dir(follow_symlinks=False)
                if entry.name in self._kept or (path in named and not is_directory):
                    continue
                if path not in directories or not is_directory:
                    self._remove(Path(entry.path), path)
                    continue
                for one in list(os.scandir(entry.path)):
                    if f"{path}/{one.name}" not in named or one.is_dir(follow_symlinks=False):
                        self._remove(Path(one.path), f"{path}/{one.name}")

    def _remove(self, real_path: Path, path: str) -> None:
        if real_path.is_dir() and not real_path.is_symlink():
            for known in [one for one in self._known if one.startswith(f"{path}/")]:
                del self._known[known]
            shutil.rmtree(real_path)
        else:
            self._known.pop(path, None)
            real_path.unlink()
        self._unsynced.add(real_path.parent)

    def _compare(self, file: CutFile) -> list[PlacedPiece]:
        """Return the pieces of a file whose bytes are not there; make the file if it is missing."""
        known = self._known.pop(file.path, None)
        path, at = place(self._log_dirs, file.path), 0
        missing: list[PlacedPiece] = []
        if not path.exists():
            self._unsynced.add(path.parent)
        with opened(path, os.O_RDWR | os.O_CREAT) as fd:
            size = os.fstat(fd).st_size
            for number, piece in enumerate(file.pieces):
                self._seen(0)
                is_known = known is not None and piece in known.pieces[number : number + 1]
                if not is_known and crc_of(fd, at, piece.length) != piece.crc:
                    missing.append(PlacedPiece(piece, file.path, at))
                at += piece.length
        if at != file.size:
            raise StoreError(f"{path} has {at} of {file.size} bytes in the cut")
        self._beside.discard(file.path)
        if self._is_read and (size > file.size or (missing and missing[0].at < size)):
            self._beside.add(file.path)
            shutil.copyfile(path, place(self._log_dirs, beside(file.path)))
            self._unsynced.add(path.parent)
            return [one._replace(path=beside(file.path)) for one in missing]
        return missing

    def _download(self, run: _Run) -> None:
        data = memoryview(self._store.get(bundle_name(run.bundle), run.start, run.end - run.start))
        for piece, path, at in run.pieces:
            part = data[piece.position - run.start :][: piece.length]
            if len(part) != piece.length or checksum(part) != piece.crc:
                raise StoreError(
                    f"{bundle_name(run.bundle)} is damaged at byte {piece.position}: its checksum does not "
                    "match"
                )
            with opened(place(self._log_dirs, path), os.O_WRONLY) as fd:
                write_all_at(fd, part, at)
        self._seen(len(data))

    def _settle(self, file: CutFile) -> None:
        path, is_beside = place(self._log_dirs, file.path), file.path in self._beside
        made = place(self._log_dirs, beside(file.path)) if is_beside else path
        with opened(made, os.O_RDWR) as fd:
            if os.fstat(fd).st_size != file.size:
                os.ftruncate(fd, file.size)
            os.fsync(fd)
        if is_beside:
            made.rename(path)
            self._beside.remove(file.path)
        self._known[file.path] = file


def place(log_dirs: Sequence[Path], path: str) -> Path:
    """Return where a file or directory of a cut belongs, while the directories are not finished."""
    number, _, name = path.partition("/")
    return log_dirs[int(number)] / (unfinished(name) if name == META_PROPERTIES else name)


def beside(path: str) -> str:
    """Return the path of a file's replacement until it is whole. The next cut removes one that is left."""
    return f"{path}.beside"


def unfinished(name: str) -> str:
    """Return the name that a file has while its directory is not finished."""
    return f"{name}.restored"


def _runs(wanted: Iterable[PlacedPiece]) -> Iterator[_Run]:
    """Yield what to download: pieces that lie close to each other in a bundle by one request."""
    run: _Run | None = None
    for one in sorted(wanted, key=lambda one: (one.piece.bundle, one.piece.position)):
        bundle, start, end = one.piece.bundle, one.piece.position, one.piece.position + one.piece.length
        if (
            run is not None
            and run.bundle == bundle
            and start - run.end <= _GAP_BYTES
            and end - run.start <= _RUN_BYTES
        ):
            run.pieces.append(one)
            run = run._replace(end=max(run.end, end))
            continue
        if run is not None:
            yield run
        run = _Run(bundle, start, end, [one])
    if run is not None:
        yield run
