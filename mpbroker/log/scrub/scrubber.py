"""Search one sealed segment for damage, batch by batch, without disturbing other users of the disk.

Reading leaves the page cache unchanged. A batch that seems damaged is read again from the disk first: a bit
flipped in memory is not damage. After damage the walk continues with the next whole batch.

A batch's CRC does not cover its offsets. If a batch begins below the end of the previous batch, one of them
has wrong offsets. If there is no gap of offsets before the previous batch, or if the later batch begins below
that gap, the later batch is wrong. If the previous batch, moved to the start of the gap, would end where the
later batch begins, the previous batch is wrong. In all other cases neither batch is served.

The CRC does not cover the leader epoch either. (Consumers need it to find out whether the log was truncated.)
The epoch has to agree with `leader-epoch-checkpoint`. That file has no checksum, so it is trusted only
if a batch agrees with it.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mpbroker.log.io import background_io
from mpbroker.log.partition.batch_walker import Walk, base_offset, header_of, next_whole
from mpbroker.records.batch import BATCH_HEADER_BYTES
from mpbroker.storage.damage import Damage, FileIdentity, Place
from mpbroker.storage.leader_epochs import NO_EPOCH, Epochs, epoch_of
from mpbroker.storage.names import LEADER_EPOCHS, OFFSET_SPAN, SWAP_FILE_SUFFIX, segment_name
from mpbroker.storage.strict_stat import is_there

# The bytes of one read.
PIECE_BYTES = 256 << 10
# Searched at a time after damage: a batch that begins in the first half of a window has to end in it.
WINDOW_BYTES = 16 << 20
_log = logging.getLogger("mpbroker.log.scrub")


class SegmentReplaced(Exception):
    """Raised when the file was deleted or replaced, so that findings in it are void."""


class ColdFile:
    """A file that is read without disturbing its other users. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises SegmentReplaced, OSError."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SegmentReplaced(f"{path} was deleted") from error
        self.identity = FileIdentity.of(os.fstat(self._fd))
        # Only the bytes read on purpose have to be dropped again.
        background_io.no_read_ahead(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def is_in_place(self) -> bool:
        try:
            return FileIdentity.of(self.path.stat()) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, position: int, count: int) -> bytes:
        """Read bytes. Those that were not in the page cache before are dropped from it again.

        Bytes that the disk cannot deliver (EIO) are zeros. Raises SegmentReplaced, OSError.
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
        """Do what `read` does, but from the disk, not from memory, and leave the bytes in the page cache."""
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
                # Read page by page; pages that fail stay zeros, of which no batch is made.
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
    """A pass over a segment. `place` is the position from which a later process can continue it."""

    def __init__(
        self, file: ColdFile, place: Place, next_base: int, now_ms: Callable[[], int], epochs: Epochs = ()
    ) -> None:
        """Continue at `place`. `next_base`: the next segment's base. Raises SegmentReplaced, OSError."""
        self.place = place
        self._file = file
        self._size = file.identity.size
        self._next_base = next_base
        self._now_ms = now_ms
        self._epochs = epochs if self._fit(epochs) else ()
        self._walk = Walk(place.base, place.position, max(place.next_offset, place.base), self._epochs)
        # Bytes from the walk's position on, as far as they are read.
        self._data = b""
        self._read_to = place.position

    @property
    def batches(self) -> int:
        return self._walk.batches

    def run(self) -> Iterator[int]:
        """Scrub the rest of the segment; yield the size of each read. Raises SegmentReplaced, OSError."""
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
            # The last batch belongs to the next segment, or its base offset is wrong.
            self._found(
                walk.before_position,
                self._size,
                walk.before_expected,
                self._next_base,
                f"its offsets reach beyond {self._next_base}, where the next segment begins",
            )
        self._check_place()

    def _fit(self, epochs: Epochs) -> bool:
        """Return whether the checkpoint's epochs agree with the first batch of this or the next segment."""
        if not epochs:
            return False
        seen = [header_of(self._file.read(0, BATCH_HEADER_BYTES))] if self._size >= BATCH_HEADER_BYTES else []
        try:
            with self._file.path.with_name(segment_name(self._next_base)).open("rb") as next_segment:
                data = next_segment.read(BATCH_HEADER_BYTES)
        except FileNotFoundError:
            data = b""
        if len(data) == BATCH_HEADER_BYTES:
            seen.append(header_of(data))
        compared = [(offset, epoch, epoch_of(epochs, offset)) for offset, epoch in seen]
        odd = [one for one in compared if NO_EPOCH not in one[1:] and one[1] != one[2]]
        if not odd or any(epoch == wanted != NO_EPOCH for _, epoch, wanted in compared):
            return True
        _log.warning(
            "%s is not trusted: at offset %d it has epoch %d, %s has %d",
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

    # ---- damage ----

    def _judge(self, reason: str) -> Iterator[int]:
        """Read a suspect batch again from the disk. If it is still bad, record the damage and skip it."""
        walk, position = self._walk, self._walk.position
        count = min(max(walk.need, mmap.PAGESIZE), self._size - position)
        again = self._file.read_again(position, count)
        yield count
        retry = Walk(walk.base, position, walk.next_offset, self._epochs)
        reason = retry.feed(again, self._size)
        if retry.position > position or not reason:
            _log.warning(
                "%s: byte %d was read differently from the disk; the memory of this machine may be faulty",
                self._file.path,
                position,
            )
            self._data, self._read_to = again, position + count
            return
        if not self._would_fit_without_a_gap(again):
            yield from self._skip(position, walk.next_offset, reason)
            return
        first = base_offset(again, 0)
        reason = f"it begins at offset {walk.before_base}, and the next batch at {first}"
        if first - walk.before_expected == walk.next_offset - walk.before_base:
            self._found(walk.before_position, position, walk.before_expected, first, reason)
            self._jump(position, first)
        else:
            yield from self._skip(walk.before_position, walk.before_expected, reason)

    def _would_fit_without_a_gap(self, data: bytes) -> bool:
        """Return whether `data` would follow the previous batch if there were no gap before that batch."""
        walk = self._walk
        if walk.before_position < 0 or walk.before_base == walk.before_expected:
            return False
        retry = Walk(walk.base, walk.position, walk.before_expected, self._epochs)
        retry.feed(data, self._size)
        return retry.position > walk.position

    def _skip(self, position: int, first: int, reason: str) -> Iterator[int]:
        """Record damage from `position` to the next whole batch or the segment's end; continue there."""
        walk = self._walk
        end, next_offset = self._size, self._next_base
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
                end, next_offset = at + found, base_offset(window, found)
                break
            at = self._size if is_last else at + half
        self._found(position, end, first, next_offset, reason)
        self._jump(end, next_offset)

    def _found(self, position: int, end: int, first: int, next_offset: int, reason: str) -> None:
        self._check_place()
        place = self.place
        damage = Damage(
            place.partition,
            place.base,
            position,
            end,
            first,
            max(next_offset, first),
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
        """Return whether the next segment exists and will stay. Raises SegmentReplaced, OSError.

        Compaction may have merged the next segment into this file. Until the swap is finished, the file also
        has its `.swap` name (`mpbroker.log.partition.segment_swap`).
        """
        self._check_place()
        path = self._file.path
        is_swapped = is_there(path.with_name(path.name + SWAP_FILE_SUFFIX))
        return not is_swapped and is_there(path.with_name(segment_name(self._next_base)))

    def _check_place(self) -> None:
        """Raise SegmentReplaced if compaction, retention or a deletion has replaced the file."""
        if not self._file.is_in_place():
            raise SegmentReplaced(f"{self._file.path} is another file now")
