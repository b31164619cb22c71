"""Looking for damage in one sealed segment, batch by batch, without disturbing who uses the same disk.

What is read leaves the page cache as it was. What does not fit is read once more from the disk before it
counts as damage: a flipped bit in memory is none. Behind damage the walk goes on with the next whole batch.

Offsets stand outside of what a batch's CRC covers. A batch that begins before the one in front of it has
ended gives one of the two away: where the one in front left a gap in the offsets, and the later one begins
just where it would without, it is the one in front; if that cannot be told, neither is served.

Nor does it cover the leader epoch, for which consumers ask the broker where their log was cut off: it is as
`leader-epoch-checkpoint` says. That file has no checksum either, so it counts only where a batch agrees.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mpbroker.log.format.damage import Damage, FileIdentity, Place
from mpbroker.log.format.leader_epochs import NO_EPOCH, Epochs, epoch_of
from mpbroker.log.format.names import LEADER_EPOCHS, OFFSET_SPAN, SWAP_FILE_SUFFIX, segment_name
from mpbroker.log.io import background_io
from mpbroker.log.io.strict_stat import is_there
from mpbroker.log.partition.batch_walker import Walk, base_offset, header_of, next_whole
from mpbroker.records.batch import BATCH_HEADER_BYTES

# What is read at a time.
PIECE_BYTES = 256 << 10
# Behind damage: a batch that begins in the first half of a window is found if it ends in the window.
WINDOW_BYTES = 16 << 20
_log = logging.getLogger("mpbroker")


class SegmentReplaced(Exception):
    """The file has gone, or is another one: what was found in it means nothing."""


class ColdFile:
    """A file that is read beside others who use it. Not for two threads."""

    def __init__(self, path: Path) -> None:
        """Raises SegmentReplaced, OSError."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SegmentReplaced(f"{path} is gone") from error
        self.identity = FileIdentity.of(os.fstat(self._fd))
        # So that only what we asked for is to be dropped again.
        background_io.no_read_ahead(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def is_in_place(self) -> bool:
        try:
            return FileIdentity.of(self.path.stat()) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, position: int, count: int) -> bytes:
        """What was not in the page cache leaves it again. Bytes that the disk cannot give (EIO) are zeros.
        Raises SegmentReplaced, OSError.
        """
        try:
            data, _ = background_io.read(self._fd, count, position, leaves_cache=True)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = bytes(self._read_all(position, count))
            background_io.drop(self._fd, position, count)
        if len(data) < count:
            raise SegmentReplaced(f"{self.path} has become shorter")
        return data

    def read_again(self, position: int, count: int) -> bytes:
        """As it is on the disk; it stays in the page cache. Otherwise as `read`."""
        background_io.drop(self._fd, position, count)
        return bytes(self._read_all(position, count))

    def _read_all(self, position: int, count: int) -> bytearray:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = os.preadv(self._fd, [view[at:]], position + at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # A page at a time, and none of those that cannot be read: no batch is made of zeros.
                step = min(mmap.PAGESIZE - (position + at) % mmap.PAGESIZE, count - at)
                got = self._read_page(view[at : at + step], position + at)
            if got == 0:
                raise SegmentReplaced(f"{self.path} has become shorter")
            at += got
        return data

    def _read_page(self, view: memoryview, position: int) -> int:
        try:
            return os.preadv(self._fd, [view], position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(view)


class SegmentScrub:
    """One pass over a segment: `place` says how far, also for the next process. Raises SegmentReplaced."""

    def __init__(
        self,
        file: ColdFile,
        place: Place,
        next_base: int,
        now_ms: Callable[[], int],
        epochs: Epochs = (),
    ) -> None:
        """`next_base`: that of the segment behind it. `epochs`: which leader epoch wrote what."""
        self.place = place
        self._file = file
        self._size = file.identity.size
        self._next_base = next_base
        self._now_ms = now_ms
        self._epochs = epochs if self._fit(epochs) else ()
        self._walk = Walk(place.base, place.position, max(place.next_offset, place.base), self._epochs)
        # What lies at the walk's position, as far as it is read.
        self._data = b""
        self._read_to = place.position

    @property
    def batches(self) -> int:
        return self._walk.batches

    def run(self) -> Iterator[int]:
        """Bytes that were read, step by step."""
        walk = self._walk
        while True:
            before = walk.position
            reason = walk.feed(self._data, self._size)
            self._data = self._data[walk.position - before :]
            self._move()
            if reason:
                yield from self._judge(reason)
            elif walk.position == self._size:
                break
            else:
                yield self._read_on()
        if walk.next_offset > self._next_base and walk.before_position >= 0 and self._has_neighbour():
            # All that lies in it belongs to the next segment, or its base offset says so wrongly.
            self._found(
                walk.before_position,
                self._size,
                walk.before_expected,
                self._next_base,
                f"its offsets reach beyond {self._next_base}, where the next segment begins",
            )
        self._check_place()

    def _fit(self, epochs: Epochs) -> bool:
        """Whether the first batch here, or of the next segment, is of the epoch that it should be."""
        if not epochs:
            return False
        seen = [header_of(self._file.read(0, BATCH_HEADER_BYTES))] if self._size >= BATCH_HEADER_BYTES else []
        try:
            with self._file.path.with_name(segment_name(self._next_base)).open("rb") as behind:
                data = behind.read(BATCH_HEADER_BYTES)
        except FileNotFoundError:
            data = b""
        if len(data) == BATCH_HEADER_BYTES:
            seen.append(header_of(data))
        said = [(offset, epoch, epoch_of(epochs, offset)) for offset, epoch in seen]
        odd = [one for one in said if NO_EPOCH not in one[1:] and one[1] != one[2]]
        if not odd or any(epoch == wanted != NO_EPOCH for _, epoch, wanted in said):
            return True
        _log.warning(
            "%s is not believed: for offset %d it says epoch %d, %s says %d",
            self._file.path.with_name(LEADER_EPOCHS),
            odd[0][0],
            odd[0][2],
            self._file.path.name,
            odd[0][1],
        )
        return False

    def _read_on(self) -> int:
        count = min(PIECE_BYTES - self._read_to % PIECE_BYTES, self._size - self._read_to)
        self._data += self._file.read(self._read_to, count)
        self._read_to += count
        return count

    def _move(self) -> None:
        self.place.position, self.place.next_offset = self._walk.position, self._walk.next_offset

    def _jump(self, position: int, next_offset: int) -> None:
        self._walk.jump(position, next_offset)
        self._data, self._read_to = b"", position
        self._move()

    # ---- what does not fit ----

    def _judge(self, reason: str) -> Iterator[int]:
        """Reads it again; then it is damage, or goes on behind it."""
        walk, position = self._walk, self._walk.position
        count = min(max(walk.need, mmap.PAGESIZE), self._size - position)
        again = self._file.read_again(position, count)
        yield count
        anew = Walk(walk.base, position, walk.next_offset, self._epochs)
        reason = anew.feed(again, self._size)
        if anew.position > position or not reason:
            _log.warning(
                "%s: what was read at byte %d was not what is on the disk; the memory of this machine may be "
                "at fault",
                self._file.path,
                position,
            )
            self._data, self._read_to = again, position + count
            return
        if not self._would_fit_without_a_gap(again):
            yield from self._skip(position, walk.next_offset, reason)
            return
        first = base_offset(again, 0)
        reason = f"it begins at offset {walk.before_base}, and the batch behind it at {first}"
        if first - walk.before_expected == walk.next_offset - walk.before_base:
            self._found(walk.before_position, position, walk.before_expected, first, reason)
            self._jump(position, first)
        else:
            yield from self._skip(walk.before_position, walk.before_expected, reason)

    def _would_fit_without_a_gap(self, data: bytes) -> bool:
        """Whether it may be the batch in front that has wrong offsets, since it left a gap."""
        walk = self._walk
        if walk.before_position < 0 or walk.before_base == walk.before_expected:
            return False
        anew = Walk(walk.base, walk.position, walk.before_expected, self._epochs)
        anew.feed(data, self._size)
        return anew.position > walk.position

    def _skip(self, position: int, first: int, reason: str) -> Iterator[int]:
        """To the next whole batch behind the one that the walk is at, or to the end."""
        walk = self._walk
        end, behind = self._size, self._next_base
        at = walk.position + 1
        while at < self._size:
            window = self._file.read(at, min(WINDOW_BYTES, self._size - at))
            yield len(window)
            is_last = at + len(window) == self._size
            half = len(window) if is_last else len(window) // 2
            found = next_whole(
                window, 0, half, first, walk.base, min(self._next_base, walk.base + OFFSET_SPAN)
            )
            if found >= 0:
                end, behind = at + found, base_offset(window, found)
                break
            at = self._size if is_last else at + half
        self._found(position, end, first, behind, reason)
        self._jump(end, behind)

    def _found(self, position: int, end: int, first: int, behind: int, reason: str) -> None:
        self._check_place()
        place = self.place
        damage = Damage(
            place.partition,
            place.base,
            position,
            end,
            first,
            max(behind, first),
            reason,
            self._file.identity,
            self._now_ms(),
        )
        place.found.append(damage)
        _log.error(
            "%s: %s. Fetches of these offsets are answered with CORRUPT_MESSAGE. Restore the file, or stop "
            "the broker and keep what is whole with mpbroker log repair %s",
            self._file.path.parent.parent,
            damage,
            self._file.path.parent,
        )

    def _has_neighbour(self) -> bool:
        """Whether the next segment is not about to go: this one may be what compaction made of both. Until
        that is done it has its other name, too (`mpbroker.log.partition.segment_swap`). Raises
        SegmentReplaced, OSError.
        """
        self._check_place()
        path = self._file.path
        is_swapped = is_there(path.with_name(path.name + SWAP_FILE_SUFFIX))
        return not is_swapped and is_there(path.with_name(segment_name(self._next_base)))

    def _check_place(self) -> None:
        """What compaction, retention or a deletion has replaced meanwhile is no finding."""
        if not self._file.is_in_place():
            raise SegmentReplaced(f"{self._file.path} is another file now")
