"""Producer snapshots between rolls, which shorten the check and replay of a recovery.

(Kafka takes them at rolls only, and checks whole segments after an unclean stop.) When recovery points are
written, a partition gets a snapshot if much was appended since its last snapshot. The indexes and the
`.txnindex` are synced before: a recovery trusts them up to the snapshot's offset, and begins there. Of the
snapshots that are not at a segment's base offset, the newest two are kept, since the newest may cover batches
that a power cut lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from functools import partial

from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition.partition_log import PartitionLog, sync_if_there
from mpbroker.storage.checkpoints import write_whole_at
from mpbroker.storage.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from mpbroker.storage.segments import offsets_in

SNAPSHOT_EVERY_BYTES = 1 << 20
# Most snapshots under way at a time: each holds some files open until the I/O thread has written it.
UNDER_WAY = 8
KEPT = 2


def snapshotting(
    logs: Callable[[], Iterable[PartitionLog]], io_thread: IoThread
) -> Generator[None, None, None]:
    """Take the snapshots of all partitions where one is due, a few at a time."""
    under_way = 0
    for log in list(logs()):
        if not is_due(log):
            continue
        try:
            submit_snapshot(log, io_thread)
        except OSError as error:
            # Reported as if the I/O thread had met it; tried again if the error passes.
            io_thread.submit(partial(_fail, error), log.state.log_dir)
        under_way += 1
        if under_way == UNDER_WAY:
            under_way = 0
            yield from io_thread.catching_up()


def is_due(log: PartitionLog) -> bool:
    """Return whether a log is open and SNAPSHOT_EVERY_BYTES were appended since its last snapshot."""
    state = log.state
    if state.flags != PartitionFlag.PARTITION_LIVE or state.fd < 0:
        return False
    base, size = log.snapshot_at
    return state.size - (size if base == state.segment_base else 0) >= SNAPSHOT_EVERY_BYTES


def submit_snapshot(log: PartitionLog, io_thread: IoThread) -> None:
    """Have the I/O thread write a snapshot of the current producers. Raises OSError."""
    state = log.state
    # Meanwhile the partition may roll, become dormant or be deleted, and another one get its name.
    fds = [os.open(log.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        fds += [os.dup(fd) for fd in state.index_fds]
    except OSError:
        _close(fds)
        raise
    data = state.producers.snapshot()
    job = partial(_write, fds[0], fds[1:], state.segment_base, state.log_end, data)
    io_thread.submit(job, state.log_dir)
    log.snapshot_at = (state.segment_base, state.size)


def _fail(error: OSError) -> None:
    raise error


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _write(directory: int, indexes: list[int], base: int, end: int, data: bytes) -> None:
    """Write a snapshot, in the I/O thread. Raises OSError."""
    try:
        for fd in indexes:
            os.fsync(fd)
        sync_if_there(segment_name(base, TXN_INDEX_SUFFIX), directory)
        write_whole_at(directory, segment_name(end, SNAPSHOT_SUFFIX), data)
        _drop_older(directory)
    finally:
        _close([directory, *indexes])


def _drop_older(directory: int) -> None:
    """Remove old snapshots that are not at a segment's base offset; keep the newest KEPT. Raises OSError."""
    names = os.listdir(directory)
    bases = set(offsets_in(names, LOG_SUFFIX))
    within = [offset for offset in offsets_in(names, SNAPSHOT_SUFFIX) if offset not in bases]
    for offset in within[:-KEPT]:
        # A clean stop may remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(segment_name(offset, SNAPSHOT_SUFFIX), dir_fd=directory)
