"""What a fetch would have to wait for the disk for: threads of this handler read it.

A processor that sends a part of a file which is not in the page cache waits for the disk, and with it all its
connections; so does a handler that reads one. So a handler asks whether a part is resident before it reads it
or answers with it (`mpbroker.log.residency`), and has the rest brought here, where only who wants it waits.
(Kafka has no counterpart: its network threads wait.)
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

# A disk does some reads at a time.
THREADS = 4
# So many have a descriptor; the others wait for their turn, and then say anew what they want.
MOST_AT_ONCE = 64
PIECE_BYTES = 256 << 10
# Who reads a log from the disk goes on with what follows; so much of it is asked for as well.
AHEAD_BYTES_MAX = 4 << 20

Key = tuple[int, int, int]
log = logging.getLogger("mpbroker")


class ColdReads:
    """`wake`: called in a thread, so that the loop comes to `take_in`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # By inode, position and length: who waits for it, each once.
        self._waiting: dict[Key, dict[Callable[[], None], None]] = {}
        # Who came when there were too many, longest waiting first.
        self._later: dict[Callable[[], None], None] = {}
        self._jobs: queue.SimpleQueue[tuple[Key, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Reads that are not over."""
        return len(self._waiting)

    def bring(self, fd: int, position: int, length: int, then: Callable[[], None]) -> None:
        """Calls `then` from `take_in` when it has been read, or could not be, or when it may be asked for
        again. Raises OSError.
        """
        key = os.fstat(fd).st_ino, position, length
        if key in self._waiting:
            self._waiting[key][then] = None
            return
        if len(self._waiting) >= MOST_AT_ONCE:
            self._later[then] = None
            return
        self._jobs.put((key, os.dup(fd)))
        self._waiting[key] = {then: None}
        if len(self._threads) < min(THREADS, len(self._waiting)):
            self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="cold reads", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("no thread to read from the disk: %s. Raise the limit of tasks (TasksMax)", error)
            if not self._threads:
                # Everybody waits here for the disk, rather than somebody for ever.
                self._jobs.put(None)
                self._run()
            return
        self._threads.append(thread)

    def take_in(self) -> None:
        ended: dict[Callable[[], None], None] = {}
        while not self._done.empty():
            ended |= self._waiting.pop(self._done.get())
        for then in ended:
            then()
        # Some of them may want nothing any more.
        while self._later and len(self._waiting) < MOST_AT_ONCE:
            then = next(iter(self._later))
            del self._later[then]
            then()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # ---- in a thread

    def _run(self) -> None:
        buffer = bytearray(PIECE_BYTES)
        while (job := self._jobs.get()) is not None:
            key, fd = job
            _, position, length = key
            try:
                ahead = min(length, AHEAD_BYTES_MAX)
                os.posix_fadvise(fd, position, length + ahead, os.POSIX_FADV_WILLNEED)
                end = position + length
                while position < end and (got := os.preadv(fd, [buffer], position)):
                    position += got
            except OSError as error:
                # Whoever reads it next gets the error, too, and has an answer for it.
                name = Path(f"/proc/self/fd/{fd}").readlink()
                log.error("%s cannot be read at byte %d: %s", name, position, error)
            finally:
                os.close(fd)
            self._done.put(key)
            self._wake()
