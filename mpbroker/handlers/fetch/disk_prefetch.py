"""Cold reads: threads of this handler bring parts of files into the page cache for fetches.

A processor that sends a part of a file which is not in the page cache waits for the disk, and so do all its
connections. A handler that reads such a part waits, too. So a handler checks whether a part is resident
(`mpbroker.storage.residency`) before it reads the part or answers with it. Parts that are not resident are
read by these threads, so that only fetches of those parts wait. (Kafka has no counterpart: its network
threads wait.)

Pages are moved through a pipe to /dev/null, so they are not copied. The kernel reads them in large folios, as
for any sequential reader. With POSIX_FADV_WILLNEED it would read single pages, in one call that nothing
interrupts, and all handling of single pages costs ten times the CPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

# A disk serves several reads at a time.
THREADS = 4
# Reads that have a descriptor. Others wait for their turn and then ask again.
READS_MAX = 64
# Bytes asked of the kernel at once, if the pipe has room: the most that an unprivileged process may have.
PIECE_BYTES = 1 << 20
# A client that reads a log from the disk continues. This many bytes are prefetched after its read.
AHEAD_BYTES_MAX = 4 << 20

# Device, inode, position and length. Files in several log directories may have the same inode number.
Key = tuple[int, int, int, int]
# Pulls at most `count` bytes of a file from `position` into the page cache; returns how many.
Pull: TypeAlias = Callable[[int, int, int], int]
log = logging.getLogger("mpbroker.handlers")


class DiskPrefetch:
    """The cold reads of a handler. A thread calls `wake` to make the handler's loop call `reap`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Callbacks waiting for each read, each once.
        self._waiting: dict[Key, dict[Callable[[], None], None]] = {}
        # Callbacks that came when there were too many reads, longest waiting first.
        self._later: dict[Callable[[], None], None] = {}
        self._jobs: queue.SimpleQueue[tuple[Key, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Key, OSError | None]] = queue.SimpleQueue()
        # Errors by device, inode and position, for the callbacks of the read, which are being called.
        self._failed: dict[tuple[int, int, int], OSError] = {}
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Return the number of reads under way."""
        return len(self._waiting)

    def read(self, fd: int, position: int, length: int, then: Callable[[], None]) -> None:
        """Read a part of a file into the page cache in a thread; `reap` calls `then` afterwards.

        `then` must check again whether the part is resident and, if not, call `read` again. The first read
        may have failed: then the second call raises its error. Or it did not begin, because too many other
        reads were under way. Raises OSError also if the file cannot be examined.
        """
        file = os.fstat(fd)
        key = file.st_dev, file.st_ino, position, length
        if (error := self._failed.get(key[:3])) is not None:
            raise OSError(*error.args)
        if key in self._waiting:
            self._waiting[key][then] = None
            return
        if len(self._waiting) >= READS_MAX:
            self._later[then] = None
            return
        self._jobs.put((key, os.dup(fd)))
        self._waiting[key] = {then: None}
        if len(self._threads) < min(THREADS, len(self._waiting)):
            self._start_thread()

    def _start_thread(self) -> None:
        try:
            drain = Drain()
        except OSError as error:
            self._do_without_thread(error)
            return
        thread = threading.Thread(target=self._run, args=(drain,), name="cold reads", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            drain.close()
            self._do_without_thread(error)
            return
        self._threads.append(thread)

    def _do_without_thread(self, why: Exception) -> None:
        """Log that a thread could not start. If no other thread runs, read now, which blocks all requests."""
        log.error("no thread to read from the disk: %s. Raise the limits (TasksMax, LimitNOFILE)", why)
        if not self._threads:
            self._jobs.put(None)
            self._serve(_read)

    def reap(self) -> None:
        ended: dict[Callable[[], None], None] = {}
        while not self._done.empty():
            key, error = self._done.get()
            ended |= self._waiting.pop(key)
            if error is not None:
                self._failed[key[:3]] = error
        for then in ended:
            then()
        self._failed.clear()
        # Some of them may need no read by now.
        while self._later and len(self._waiting) < READS_MAX:
            then = next(iter(self._later))
            del self._later[then]
            then()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # ---- in a thread

    def _run(self, drain: Drain) -> None:
        with contextlib.closing(drain):
            self._serve(drain.pull)

    def _serve(self, pull: Pull) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(pull, *job)

    def _do(self, pull: Pull, key: Key, fd: int) -> None:
        *_, position, length = key
        end = position + length
        error = self._pull(pull, fd, position, end, lambda: True)
        self._done.put((key, error))
        self._wake()
        if error is None:
            # Reads that fetches wait for come before reading ahead.
            self._pull(pull, fd, end, end + min(length, AHEAD_BYTES_MAX), self._jobs.empty)
        os.close(fd)

    def _pull(
        self, pull: Pull, fd: int, position: int, end: int, goes_on: Callable[[], bool]
    ) -> OSError | None:
        """Bring a part of a file into the page cache; return the error if that failed."""
        try:
            while position < end and goes_on() and (got := pull(fd, position, end - position)):
                position += got
        except OSError as error:
            name = Path(f"/proc/self/fd/{fd}").readlink()
            log.error("%s cannot be read at byte %d: %s", name, position, error)
            return error
        return None


class Drain:
    """A pipe to /dev/null, through which one thread pulls pages into the page cache.

    Raises OSError if the pipe cannot be opened.
    """

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._out, self._in = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self._null)
            raise
        with contextlib.suppress(OSError):
            # The pipes of a user are limited in total. Beyond the limit this one keeps its 64 KiB.
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIECE_BYTES)

    def close(self) -> None:
        for fd in (self._null, self._out, self._in):
            os.close(fd)

    def pull(self, fd: int, position: int, count: int) -> int:
        """Read at most `count` bytes into the page cache; return how many, 0 at the end of the file.

        Raises OSError if the file cannot be read.
        """
        got = os.splice(fd, self._in, min(count, PIECE_BYTES), offset_src=position)
        left = got
        while left:
            left -= os.splice(self._out, self._null, left)
        return got


def _read(fd: int, position: int, count: int) -> int:
    """Read at most `count` bytes into the page cache, like `Drain.pull`; return how many."""
    return len(os.pread(fd, min(count, PIECE_BYTES), position))
