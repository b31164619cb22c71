"""What a fetch would have to wait for the disk for: threads of this handler read it.

A processor that sends a part of a file which is not in the page cache waits for the disk, and with it all its
connections; so does a handler that reads one. So a handler asks whether a part is resident before it reads it
or answers with it (`mpbroker.log.residency`), and has the rest brought here, where only who wants it waits.
(Kafka has no counterpart: its network threads wait.)

Pages are moved through a pipe to /dev/null, so that nobody copies them. The kernel reads them as for any
sequential reader, in large folios; asked for by POSIX_FADV_WILLNEED they would come as single pages, which
takes ten times the CPU of all that has to do with them, in one piece that nothing interrupts.
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

# A disk does some reads at a time.
THREADS = 4
# What the kernel is asked for at once, as far as the pipe has room: all that an unprivileged one may have.
PIECE_BYTES = 1 << 20
# Who reads a log from the disk goes on with what follows; so much of it is brought as well, behind its back.
AHEAD_BYTES_MAX = 4 << 20

Key = tuple[int, int, int]
log = logging.getLogger("mpbroker")


class ColdReads:
    """`wake`: called in a thread, so that the loop comes to `take_in`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # By inode, position and length: who waits for it.
        self._waiting: dict[Key, list[Callable[[], None]]] = {}
        self._jobs: queue.SimpleQueue[tuple[Key, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Reads that are not over."""
        return len(self._waiting)

    def bring(self, fd: int, position: int, length: int, then: Callable[[], None]) -> None:
        """Calls `then` from `take_in` when it has been read, or could not be. Raises OSError."""
        key = os.fstat(fd).st_ino, position, length
        if key in self._waiting:
            self._waiting[key].append(then)
            return
        self._jobs.put((key, os.dup(fd)))
        self._waiting[key] = [then]
        if len(self._threads) < min(THREADS, len(self._waiting)):
            thread = threading.Thread(target=self._run, name="cold reads", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_in(self) -> None:
        while not self._done.empty():
            for then in self._waiting.pop(self._done.get()):
                then()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # ---- in a thread

    def _run(self) -> None:
        with Drain() as drain:
            while (job := self._jobs.get()) is not None:
                self._do(drain, *job)

    def _do(self, drain: Drain, key: Key, fd: int) -> None:
        _, position, length = key
        end = position + length
        is_there = self._pull(drain, fd, position, end, lambda: True)
        self._done.put(key)
        self._wake()
        if is_there:
            # Whatever somebody waits for comes first.
            self._pull(drain, fd, end, end + min(length, AHEAD_BYTES_MAX), self._jobs.empty)
        os.close(fd)

    def _pull(self, drain: Drain, fd: int, position: int, end: int, goes_on: Callable[[], bool]) -> bool:
        """Whether it could be read."""
        try:
            while position < end and goes_on() and (got := drain.pull(fd, position, end - position)):
                position += got
        except OSError as error:
            # Whoever reads it next gets the error, too, and has an answer for it.
            name = Path(f"/proc/self/fd/{fd}").readlink()
            log.error("%s cannot be read at byte %d: %s", name, position, error)
            return False
        return True


class Drain:
    """Where pages go that are only to be in the page cache. For one thread."""

    def __enter__(self) -> Drain:
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(PermissionError):
            # All pipes of this user together are limited: then it keeps its 64 KiB.
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._null, self._out, self._in):
            os.close(fd)

    def pull(self, fd: int, position: int, count: int) -> int:
        """Bytes that are in the page cache now; 0 at the end of the file. Raises OSError."""
        got = os.splice(fd, self._in, min(count, PIECE_BYTES), offset_src=position)
        left = got
        while left:
            left -= os.splice(self._out, self._null, left)
        return got
