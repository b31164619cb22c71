"""Open a partition that exists: trusted after a clean stop, otherwise checked (Kafka: LogLoader).

Only a torn tail is cut off: bytes that no reader has ever seen. A bad batch below the durable end is damage,
and so is a log that ends below the durable end. Then nothing is cut off, and the partition stays offline.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import msgspec

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.partition import batch_checker
from mpbroker.log.partition.durable_reads import EACH_FILE, Syncs, reread
from mpbroker.log.partition.epoch_validation import WrongEpoch, settled, stored_epochs
from mpbroker.log.partition.index_sanity import believed, odd_entry
from mpbroker.log.partition.partition_log import (
    PartitionLog,
    Sealed,
    blank_producers,
    open_files,
    remove_leftovers,
    remove_segment,
    sync,
    wall_ms,
)
from mpbroker.log.partition.segment_swap import finish_swaps
from mpbroker.log.partition.state import PartitionState
from mpbroker.log.partition.transaction_index_rebuild import remake
from mpbroker.log.recovery.partition_files import PartitionFiles, first_suspect
from mpbroker.log.recovery.producer_history import recall
from mpbroker.records.old_format import HEAD_BYTES, old_length, old_magic
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import CheckpointCorrupt, fsync_directory, opened, read_whole, write_epochs
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    entry_count,
    last_offset_entry,
    last_time_entry,
    offset_floor,
)
from mpbroker.storage.leader_epochs import Epochs, shared, trimmed
from mpbroker.storage.names import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    UNDELETED_START,
    segment_name,
)
from mpbroker.storage.producer_state import SnapshotCorrupt
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.segments import segments_of
from mpbroker.storage.transaction_index import (
    AbortedTransaction,
    TransactionIndexCorrupt,
    read_aborted,
    replace_aborted,
)

# A slow disk takes some seconds for a piece.
PIECE_BYTES = 32 << 20
# Checking this much again after the next kill takes less time than syncing a recovery point that avoids it.
LITTLE_BYTES = 64 << 10
Say = Callable[[str], None]
Count = Callable[[int], None]
_log = logging.getLogger("mpbroker.log.recovery")


class PartitionDamaged(Exception):
    """Raised when files contradict the durable state; an operator has to decide."""


class OldMessages(PartitionDamaged):
    """Raised for a log with messages in a format older than Kafka 0.11's. The log is left unchanged."""


class Known(msgspec.Struct, frozen=True):
    """Facts of an unopened partition, from checkpoints, or from the table if only the log process died."""

    clean: bool
    recovery_point: int = 0
    durable: int = 0  # everything below this offset was acknowledged as being on disk
    log_start: int = 0
    producer_expiration_ms: int = 86_400_000


def load(
    directory: Path | str,
    topic: str,
    partition: int,
    topic_id: bytes,
    config: TopicConfig,
    known: Known,
    say: Say,
    count: Count = lambda _: None,
    syncs: Syncs = EACH_FILE,
) -> PartitionLog:
    """Open the partition for appending; all of it is durable on return.

    `count` is called with numbers of bytes checked. `syncs` syncs the records that were not durable.

    Raises PartitionDamaged, CheckpointCorrupt, OSError.
    """
    log = PartitionLog(directory, topic, partition, topic_id, config)
    log.apply_config(config)
    path = log.path
    files = PartitionFiles.of(path)
    _refuse_old_segment(path, files.bases[:1])
    if files.has_leftovers:
        finish_swaps(log.directory)
        remove_leftovers(log.directory)
        files = PartitionFiles.of(path)
    if files.has_start:
        known = msgspec.structs.replace(
            known, log_start=max(known.log_start, _undeleted_start(log.directory))
        )
    bases = files.bases
    stored = stored_epochs(path)
    first = bases[0] if bases else known.log_start
    if files.has_remote and not config.is_remote_deleted:
        first = _read_remote(log, first)
    elif config.remote_storage_enable:
        # The file is lost, or the store has nothing yet. The ledger knows which, and the tier removes
        # what is below the log start: the checkpoint alone says where that is.
        first = 0
    if not bases:
        _refuse_reuse(log, known.log_start)
        _start_empty(log, known)
        _trim_epochs(log, stored or (), stored)
        return log
    log.log_start = max(known.log_start, first)
    loader = _Loader(log, files, known, say, count, syncs)
    try:
        loader.run()
        epochs = loader.settled_epochs(stored)
        _refuse_reuse(log, log.state.log_end)
        if log.state.log_end < log.log_start:
            _create_segment(log, known)
        log.sealed = [Sealed(base) for base in bases if base < log.state.segment_base] or ()
        log.load_transactions(has_aborted=bool(loader.aborted))
        _trim_epochs(log, epochs, stored)
        if any(offset not in bases for offset in loader.snapshots[:-1]):
            log.drop_old_snapshots()
    except (OSError, PartitionDamaged, CheckpointCorrupt):
        log.close_files()
        raise
    return log


def _read_remote(log: PartitionLog, local_start: int) -> int:
    """Read the file of remote segments. Return the first offset that is in the object store or here.

    Log a gap between the two. Raises OSError.
    """
    try:
        log.remote = read_remote_segments(log.directory)
    except CheckpointCorrupt as error:
        # The tier makes it again. Until then the checkpoint alone says where the log starts.
        _log.error("%s. It is written again from the object store's ledger", error)
        return 0
    if log.remote and log.remote.end < local_start:
        _log.error(
            "%s: offsets %d to %d are neither in the object store nor in a local segment; readers get "
            "OFFSET_OUT_OF_RANGE for them. Restore the segments if you have them",
            log.directory,
            log.remote.end,
            local_start - 1,
        )
    return log.remote.first_offset(local_start)


def _undeleted_start(directory: Path) -> int:
    """Return where the log of an undeleted topic began before. Raises CheckpointCorrupt, OSError."""
    data = (directory / UNDELETED_START).read_bytes()
    if not data.isdigit():
        raise CheckpointCorrupt(f"{directory / UNDELETED_START} is damaged: it has no offset, but {data!r}")
    return int(data)


def _refuse_reuse(log: PartitionLog, log_end: int) -> None:
    """Raise PartitionDamaged if the object store has offsets that this log is about to give out again."""
    if log_end < log.remote.end:
        raise PartitionDamaged(
            f"{log.directory} ends at offset {log_end}, and the object store has its offsets up to "
            f"{log.remote.end - 1}: they would be given to other records. Restore the directory, or delete "
            "the topic"
        )


def _refuse_old_segment(directory: str, bases: list[int]) -> None:
    """Raise OldMessages if a segment begins with a message of an old format. Raises OSError."""
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        with opened(path) as fd:
            _refuse_old_message(fd, path, 0)


def _refuse_old_message(fd: int, path: str, position: int) -> None:
    """Raise OldMessages if a whole message of an old format, not a torn batch, is at `position`."""
    length = old_length(os.pread(fd, HEAD_BYTES, position))
    if not length or position + length > os.fstat(fd).st_size:
        return
    magic = old_magic(os.pread(fd, length, position))
    if magic is not None:
        raise OldMessages(
            f"{path} has a message of format v{magic} at byte {position}. Brokers before Kafka 0.11 wrote "
            "that format, and it is not read here. Nothing was cut. Serve the directory with Apache Kafka 3 "
            "and copy the topic's records to a new topic there, or delete the topic"
        )


def _trim_epochs(log: PartitionLog, epochs: Epochs, stored: Epochs | None) -> None:
    """Drop epochs that begin outside of the log. If the result differs from `stored`, write it."""
    inside = trimmed(epochs, log.log_start, log.state.log_end)
    if inside != stored:
        write_epochs(log.directory, inside)
    log.epochs = shared(inside)


def _create_segment(log: PartitionLog, known: Known) -> None:
    """Replace all segments by an empty one at the log start: all records are below it and deleted."""
    _log.warning(
        "%s ends at offset %d, below its log start offset %d: it restarts there",
        log.directory,
        log.state.log_end,
        log.log_start,
    )
    log.close_files()
    for base in segments_of(log.directory):
        remove_segment(log.directory, base)
    blank_producers(log)
    _start_empty(log, known)


def _start_empty(log: PartitionLog, known: Known) -> None:
    if known.durable > known.log_start:
        raise PartitionDamaged(
            f"{log.directory} has no segments, but offsets below {known.durable} were durable. Restore "
            "the directory, or delete the topic"
        )
    log.open_fresh_segment(known.log_start)
    log.log_start = known.log_start
    log.snapshot_and_sync()


class _Loader:
    def __init__(
        self, log: PartitionLog, files: PartitionFiles, known: Known, say: Say, count: Count, syncs: Syncs
    ) -> None:
        self.log = log
        # A string, since a Path for each file of thousands of partitions takes much memory.
        self.directory = log.path
        self.files = files
        self.bases = files.bases
        self.snapshots = files.snapshots
        # Segments that may have a `.txnindex`.
        self.aborted = files.aborted.copy()
        self.known = known
        self.say = say
        self.count = count
        self.syncs = syncs
        # The first segment, by number, that is checked.
        self.suspect = len(self.bases)
        self.was_rebuilt = False
        # All files and names of the directory are on the device as they were found.
        self.is_as_on_device = False
        self.checked_bytes = 0
        # Leader epochs of the checked batches, with their offsets.
        self.epochs: list[tuple[int, int]] = []
        self.replay_from = self.bases[0]
        if not known.clean:
            self.suspect = first_suspect(self.bases, known.recovery_point)

    def _name(self, base: int, suffix: str = LOG_SUFFIX) -> str:
        return f"{self.directory}/{segment_name(base, suffix)}"

    def run(self) -> None:
        replay_from = self.replay_from = self._load_snapshot()
        next_offset = self.bases[0]
        for i, base in enumerate(self.bases):
            last = i == len(self.bases) - 1
            end = self.bases[i + 1] if not last else None
            if i >= self.suspect or self._lacks_index(base):
                self.say(f"checking {self._name(base)}")
                next_offset, was_cut = self._check(base, next_offset, next_base=end, trusted=i < self.suspect)
                if was_cut:
                    break
            elif last:
                next_offset = self._resume(base, replay_from)
            else:
                if end is not None and end > replay_from:
                    self._replay(base, replay_from)
                next_offset = end if end is not None else next_offset
        if next_offset < self.known.durable:
            raise PartitionDamaged(
                f"{self.directory} ends at offset {next_offset}, but offsets below {self.known.durable} "
                "were durable. "
                "Restore the directory, or delete the topic"
            )
        self._drop_later_snapshots(next_offset)
        if self.known.clean:
            self.log.recovery_point = next_offset
            if self.replay_from == next_offset and not self.was_rebuilt:
                self.log.settled_end = next_offset
            return
        if not self.is_as_on_device:
            # Sync the names of segments, which a round that never came was to sync, and a killed start's
            # removals.
            fsync_directory(self.log.directory)
        if next_offset <= self.known.durable or (self.is_as_on_device and self.checked_bytes <= LITTLE_BYTES):
            # The records are on the device. Syncing files that are not needed for that would cost some ten
            # milliseconds for each partition.
            self.log.recovery_point = self.known.recovery_point
            return
        self._make_durable()
        self.log.recovery_point = next_offset

    def settled_epochs(self, stored: Epochs | None) -> Epochs:
        """Return the validated epochs for the checkpoint. Raises PartitionDamaged."""
        durable = self.log.state.log_end if self.known.clean else self.known.durable
        try:
            return settled(self.directory, self.bases, stored, self.epochs, durable)
        except WrongEpoch as odd:
            base = self.bases[bisect_right(self.bases, odd.offset) - 1]
            raise PartitionDamaged(
                f"{self.directory}/{segment_name(base)} is damaged at offset {odd.offset}: {odd}. Restore "
                f"the file, or stop the broker and give it the right one with mpbroker log repair "
                f"{self.directory}"
            ) from odd

    def _drop_later_snapshots(self, end: int) -> None:
        """Remove an unfinished commit round's snapshots above `end`, which later appends would make wrong."""
        beyond = [offset for offset in self.snapshots if offset > end]
        for offset in beyond:
            Path(self._name(offset, SNAPSHOT_SUFFIX)).unlink(missing_ok=True)
            self.snapshots.remove(offset)
        if beyond:
            fsync_directory(self.log.directory)

    def _make_durable(self) -> None:
        """Make the whole log durable before it is served: sync the last segment and write a snapshot.

        If the disk is too full for a snapshot, the partition is served without it: the next recovery then
        replays from an older snapshot.
        """
        self.log.state.finish_segment()
        for fd in (self.log.state.fd, *self.log.state.index_fds):
            sync(fd)
        self.log.sync_aborted()
        try:
            self.log.add_last_snapshot()
            self.log.settled_end = self.log.state.log_end
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.warning("%s: no snapshot of its producers is written: %s", self.directory, error.strerror)

    # ---- producers ----

    def _load_snapshot(self) -> int:
        """Load the newest usable snapshot; return the offset from which batches have to be replayed.

        A snapshot has only the last batch of each producer: earlier ones are read from the log.
        """
        limit = 1 << 62 if self.known.clean else self._latest_snapshot()
        expired_before_ms = wall_ms() - self.known.producer_expiration_ms
        for offset in reversed(self.snapshots.copy()):
            path = self._name(offset, SNAPSHOT_SUFFIX)
            if offset > limit or offset < self.bases[0]:
                continue
            try:
                producers = blank_producers(self.log)
                producers.load(read_whole(path), expired_before_ms)
            except SnapshotCorrupt as error:
                _log.warning("%s is dropped: %s", path, error)
                Path(path).unlink()
                self.snapshots.remove(offset)
                continue
            recall(self.directory, [base for base in self.bases if base < offset], producers)
            return offset
        blank_producers(self.log)
        return self.bases[0]

    def _latest_snapshot(self) -> int:
        """Return the largest offset at which a snapshot is usable after an unclean stop.

        All records below it are durable, and the transaction indexes below it are sound.
        """
        latest = max(self.known.recovery_point, self.known.durable - 1)
        for base in self.bases[self.suspect :]:
            try:
                self._read_aborted(base)
            except TransactionIndexCorrupt as error:
                _log.warning("%s; it is rebuilt", error)
                return min(latest, base)
        return latest

    def _read_aborted(self, base: int) -> list[AbortedTransaction]:
        return read_aborted(self._name(base, TXN_INDEX_SUFFIX)) if base in self.aborted else []

    def _replay(self, base: int, offset: int) -> None:
        """Replay producer state from the batches of a trusted segment, from `offset` on."""
        fds = open_files(self.directory, base, fresh=False)
        try:
            self._replay_open(fds, base, offset)
        finally:
            for fd in fds:
                os.close(fd)

    def _replay_open(self, fds: tuple[int, int, int], base: int, offset: int) -> None:
        end = os.fstat(fds[0]).st_size
        first = scan.find_offset(fds[0], offset_floor(fds[1], base, offset)[1], end, offset)
        if first is None:
            return
        state = PartitionState()
        state.open_segment(base, *fds, wall_ms())
        state.replace_producers(self.log.state.producers)
        checked = self._checked(fds[0], first.position, end, first.base_offset, state, False, offset)
        if checked.reason:
            raise self._damaged(base, checked.valid_bytes, checked.next_offset, checked.reason)

    def _checked(
        self,
        fd: int,
        position: int,
        size: int,
        next_offset: int,
        state: PartitionState,
        apply_index: bool,
        producers_from: int,
    ) -> batch_checker.Checked:
        """Check batches from `position` on, in pieces with heartbeats in between; note their epochs."""
        aborted: list[tuple[int, int, int, int]] = []
        while True:
            checked = batch_checker.check_batches(
                fd, position, size, next_offset, state, apply_index, producers_from, PIECE_BYTES
            )
            self.count(checked.valid_bytes - position)
            self.checked_bytes += checked.valid_bytes - position
            aborted += checked.aborted
            self.epochs += checked.epochs
            position, next_offset = checked.valid_bytes, checked.next_offset
            if checked.reason or position >= size:
                return checked._replace(aborted=aborted, epochs=[])
            self.say(f"checking {self.directory}, at offset {next_offset}")

    # ---- segments ----

    def _lacks_index(self, base: int) -> bool:
        return base not in self.files.indexes or base not in self.files.time_indexes

    def _resume(self, base: int, replay_from: int) -> int:
        """Open the last segment after a clean stop; return the log end. Raises PartitionDamaged."""
        fds = open_files(self.directory, base, fresh=False)
        self.log.state.open_segment(base, *fds, wall_ms())
        _trim(fds[1], OFFSET_ENTRY)
        _trim(fds[2], TIME_ENTRY)
        size = os.fstat(fds[0]).st_size
        entry, time = last_offset_entry(fds[1], base), last_time_entry(fds[2], base)
        at = _last_batches(fds[0], entry[2], size)
        if size and (not at or at[-1].position + at[-1].length != size):
            _refuse_old_message(fds[0], self._name(base), at[-1].position + at[-1].length if at else 0)
            end = at[-1].last_offset + 1 if at else base
            raise self._damaged(
                base, at[-1].position + at[-1].length if at else 0, end, "it is cut off or malformed"
            )
        log_end = at[-1].last_offset + 1 if at else base
        if at and log_end > self.known.recovery_point > 0:
            # No CRC covers offsets, but the log's end was written down when it was closed.
            reason = f"it ends at offset {log_end}, and was closed at {self.known.recovery_point}"
            raise self._damaged(base, at[-1].position, at[-1].base_offset, reason)
        odd = odd_entry(fds, base, at, entry, time)
        if odd is not None and self._is_whole(fds[0], base, size, odd):
            _log.warning("%s/%s. Both indexes are rebuilt", self.directory, odd)
            for fd in fds[1:]:
                os.ftruncate(fd, 0)
            self.log.close_files()
            log_end, _ = self._check(base, base, next_base=None, trusted=True)
            self.log.finish_segment()
            return log_end
        if replay_from < log_end:
            self._replay_open(fds, base, max(replay_from, base))
        self.epochs += [(batch.leader_epoch, batch.base_offset) for batch in at if batch.leader_epoch >= 0]
        self.log.state.resume_at(size, log_end, _first_ms(fds[0], base, size), entry, time)
        return log_end

    def _is_whole(self, fd: int, base: int, size: int, odd: str) -> bool:
        """Return whether all batches of the segment are sound. `odd` describes a wrong entry of its indexes.

        A damaged batch is only logged: the other batches of a cleanly closed partition can be served.
        """
        state, known = PartitionState(), len(self.epochs)
        state.open_segment(base, fd, -1, -1, wall_ms())
        checked = self._checked(fd, 0, size, base, state, False, 1 << 62)
        del self.epochs[known:]
        if checked.reason:
            place = f"{self._name(base)} is damaged at byte {checked.valid_bytes}: {checked.reason}"
            _log.warning("%s/%s: %s", self.directory, odd, place)
        return not checked.reason

    def _check(
        self, base: int, next_offset: int, *, next_base: int | None, trusted: bool
    ) -> tuple[int, bool]:
        """Check a segment; return (next offset, whether the log ends in it). Raises PartitionDamaged."""
        fds = open_files(self.directory, base, fresh=False)
        state = self.log.state
        state.open_segment(base, *fds, wall_ms())
        self.was_rebuilt = True
        size = os.fstat(fds[0]).st_size
        start, next_offset = self._believe_indexes(fds, base, size, max(next_offset, base))
        self._sync_and_reread(fds[0], start, size)
        checked = self._checked(fds[0], start, size, next_offset, state, True, self.replay_from)
        if checked.reason:
            _refuse_old_message(fds[0], self._name(base), checked.valid_bytes)
            damaged = trusted or checked.next_offset < self.known.durable
            if damaged:
                raise self._damaged(base, checked.valid_bytes, checked.next_offset, checked.reason)
            self._drop_later_segments(base)
            self._cut(fds[0], base, size, checked)
        # The index of aborted transactions may have been deleted together with another index.
        if self._lacks_index(base) and remake(self.log.directory, base, self.count):
            self.aborted.add(base)
        if not trusted:
            self._replace_aborted(base, [AbortedTransaction(*entry) for entry in checked.aborted])
        state.finish_rebuilt(checked.next_offset)
        is_final = self.replay_from == checked.next_offset
        _shorten(fds[2], state.end_times(last_time_entry(fds[2], base), is_final) * TIME_ENTRY)
        ends_here = bool(checked.reason)
        if not ends_here and not trusted and self._lost_its_end(checked.next_offset, next_base):
            ends_here = True
            self._drop_later_segments(base)
        if next_base is not None and not ends_here:
            self.log.finish_segment()
            for fd in fds[1:]:
                sync(fd)
            self.log.sync_aborted()
            self.log.close_files()
        return checked.next_offset, ends_here

    def _sync_and_reread(self, fd: int, position: int, size: int) -> None:
        """Sync records that were not durable, and have the check read them from the device.

        After a failed sync by any process, the page cache may have bytes that will never be written. The size
        is synced in any case: an earlier start may have been killed just after it truncated the file.
        """
        self.is_as_on_device = self.syncs.sync(fd)
        first = scan.find_offset(fd, position, size, self.known.durable)
        if first is not None:
            reread(fd, first.position)

    def _replace_aborted(self, base: int, found: list[AbortedTransaction]) -> None:
        """Rewrite the segment's `.txnindex`: its entries below the loaded snapshot, then the entries `found`.

        Do not call it for a trusted segment: if producers were not replayed, `found` lacks transactions.
        """
        if base not in self.aborted and not found:
            return
        before = self._read_aborted(base) if self.replay_from > base else []
        wanted = [*(entry for entry in before if entry.last_offset < self.replay_from), *found]
        (self.aborted.add if wanted else self.aborted.discard)(base)
        replace_aborted(Path(self._name(base, TXN_INDEX_SUFFIX)), wanted)

    def _believe_indexes(
        self, fds: tuple[int, int, int], base: int, size: int, next_offset: int
    ) -> tuple[int, int]:
        """Return (position, offset) of the last batch up to which the indexes are trusted.

        Cut off later entries. But if only one time entry is later, leave it: `end_times` decides about it.
        """
        found = believed(fds, base, min(self.known.recovery_point, self.replay_from), size)
        entries, times = (found.entry[0], found.time[0]) if found is not None else (0, 0)
        _shorten(fds[1], entries * OFFSET_ENTRY)
        if os.fstat(fds[2]).st_size != (times + 1) * TIME_ENTRY:
            _shorten(fds[2], times * TIME_ENTRY)
        if found is None:
            return 0, next_offset
        first_ms = _first_ms(fds[0], base, size)
        self.log.state.resume_at(found.position, found.base_offset, first_ms, found.entry, found.time)
        return found.position, found.base_offset

    def _lost_its_end(self, next_offset: int, next_base: int | None) -> bool:
        """Return whether unsynced batches at the segment's end were lost: the next segment begins later.

        Compaction leaves gaps, too, so a compacted topic may have them. Without a checkpoint of the partition
        every gap is accepted, because the topic may have been compacted earlier.
        """
        if next_base is None or next_base == next_offset or "compact" in self.log.config.cleanup_policy:
            return False
        return 0 < max(self.known.durable, self.known.recovery_point) <= next_offset

    def _cut(self, fd: int, base: int, size: int, checked: batch_checker.Checked) -> None:
        """Truncate the torn tail and sync the file: stale bytes must never follow later appends."""
        path = self._name(base)
        self.is_as_on_device = False
        follows = batch_checker.good_batch_behind(fd, checked.valid_bytes, size, checked.next_offset, base)
        _log.warning(
            "%s: cut from %d to %d bytes, before offset %d: %s%s",
            path,
            size,
            checked.valid_bytes,
            checked.next_offset,
            checked.reason,
            " (a whole batch follows; none of this was durable)" if follows else "",
        )
        os.ftruncate(fd, checked.valid_bytes)
        sync(fd)

    def _drop_later_segments(self, end: int) -> None:
        """Remove the segments after `end`, where the log ends; they were never durable.

        The last segment is removed first, and all of them before the torn tail is cut off. If the process is
        killed meanwhile, the next start finds the same torn tail.
        """
        later = [base for base in self.bases if base > end]
        for base in reversed(later):
            _log.warning("%s: removed, it follows a torn tail", self._name(base))
            remove_segment(self.log.directory, base)
        if later:
            fsync_directory(self.log.directory)

    def _damaged(self, base: int, position: int, offset: int, reason: str) -> PartitionDamaged:
        return PartitionDamaged(
            f"{self._name(base)} is damaged at byte {position} (offset {offset}): "
            f"{reason}. Offsets below {max(self.known.durable, self.known.recovery_point)} were durable, "
            "so nothing is cut. Restore the file, or stop the broker and keep what is whole with "
            f"mpbroker log repair {self.directory}, or delete the topic"
        )


def _last_batches(fd: int, position: int, size: int) -> list[scan.BatchAt]:
    """Return the batches from `position` on, or all batches if those do not end exactly at `size`."""
    at = scan.batches(fd, max(position, 0), size)
    if position and (not at or at[-1].position + at[-1].length != size):
        return scan.batches(fd, 0, size)
    return at


def _first_ms(fd: int, base: int, size: int) -> int:
    """Return the largest timestamp of the segment's first batch; -1 if it has none."""
    first = scan.find_offset(fd, 0, size, base)
    return first.max_timestamp if first is not None else -1


def _trim(fd: int, entry_bytes: int) -> None:
    """Cut off the zeros of an index that another broker left preallocated."""
    _shorten(fd, entry_count(fd, entry_bytes) * entry_bytes)


def _shorten(fd: int, size: int) -> None:
    """Truncate the file to `size`. A file that has this size stays untouched, so that it needs no sync."""
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, size)
