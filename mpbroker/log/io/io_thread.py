"""A thread for what must not hold up the log process's loop: checkpoints with their fsync, removals.

One after the other, in the order given; the loop's turn runs without the GIL, so that a thread gets its
share, and a loop that has nothing to do but to wait for it sleeps: beside one that looks again and again, a
thread that needs the GIL for each system call hardly gets on. What fails is told to the loop, which decides.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Generator

_log = logging.getLogger("mpbroker")


class Helper:
    """`wake`: called in its thread after each job, so that the loop looks."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[tuple[int, OSError]] = queue.SimpleQueue()
        # No disk's failure but a mistake of ours: it ends the process.
        self._broken_by: Exception | None = None
        # How many jobs there were, and how many of them are over, whatever came of them. Jobs give jobs, too.
        self._counting = threading.Lock()
        self._submitted = 0
        self._done = 0
        # By a step that found it still at work, and will look again when the loop is woken.
        self.is_awaited = False
        self._thread = threading.Thread(target=self._run, name="log helper", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], log_dir: int) -> None:
        """`log_dir`: where it works, should it fail with an OSError."""
        with self._counting:
            self._submitted += 1
            self._jobs.put((job, log_dir))

    @property
    def is_idle(self) -> bool:
        return self._done == self._submitted

    def catching_up(self) -> Generator[None, None, None]:
        """Until all is over that it has been given now."""
        given = self._submitted
        while self._done < given:
            self.is_awaited = True
            yield

    def failures(self) -> list[tuple[int, OSError]]:
        """(log directory, error) since the last call. Raises RuntimeError if the helper is broken."""
        if self._broken_by is not None:
            raise RuntimeError("a job of the log helper broke it") from self._broken_by
        return [self._failed.get() for _ in range(self._failed.qsize())]

    def close(self) -> None:
        """Waits for all that was submitted."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, log_dir = entry
            try:
                job()
            except OSError as error:
                self._failed.put((log_dir, error))
            except Exception as error:
                # Not done: who waits for the job must not take it for done before the process ends.
                _log.exception("a job of the log helper fails")
                self._broken_by = error
                self._wake()
                return
            self._done += 1
            self._wake()
