"""A thread for jobs that must not delay the log process's loop: checkpoints with their fsync, removals.

Jobs run in the order submitted. The loop's native turn releases the GIL, so the thread can run meanwhile. If
the loop has only to wait for the thread, it sleeps. If it polled, the thread, which needs the GIL after each
system call, would hardly make progress. The loop asks for failed jobs (`failures`) and decides what follows.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Generator

_log = logging.getLogger("mpbroker.log")
THREAD_NAME = "log helper"


class IoThread:
    """The thread and its queue of jobs. After each job the thread calls `wake`, which wakes the loop."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[tuple[int, OSError]] = queue.SimpleQueue()
        # A bug, not a disk's failure: it ends the process.
        self._broken_by: Exception | None = None
        # Jobs submitted, and jobs over, failed or not. Jobs submit jobs, too.
        self._counting = threading.Lock()
        self._submitted = 0
        self._done = 0
        # Set by a step that waits for a job, or another thread, and continues when the loop is woken.
        self.is_awaited = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], log_dir: int) -> None:
        """Queue a job. If it raises an OSError, `failures` lists the error with `log_dir`."""
        with self._counting:
            self._submitted += 1
            self._jobs.put((job, log_dir))

    @property
    def is_idle(self) -> bool:
        return self._done == self._submitted

    def catching_up(self) -> Generator[None, None, None]:
        """Yield until all jobs submitted so far have ended."""
        given = self._submitted
        while self._done < given:
            self.is_awaited = True
            yield

    def failures(self) -> list[tuple[int, OSError]]:
        """List (log directory, error) of jobs failed since the last call.

        Raises RuntimeError if another exception than OSError has ended the thread.
        """
        if self._broken_by is not None:
            raise RuntimeError("a job ended the log helper") from self._broken_by
        return [self._failed.get() for _ in range(self._failed.qsize())]

    def close(self) -> None:
        """Finish all submitted jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, log_dir = entry
            try:
                job()
            except OSError as error:
                self._failed.put((log_dir, error))
            except Exception as error:  # noqa: BLE001 - `failures` raises it
                # Not counted as done: a waiting step must not go on before the process ends.
                _log.exception("a job of the log helper failed")
                self._broken_by = error
                self._wake()
                return
            self._done += 1
            self._wake()
