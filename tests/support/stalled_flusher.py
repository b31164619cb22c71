"""A flusher that waits until a test lets it go on."""

from __future__ import annotations

import os
from pathlib import Path

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import LOG
from tests.support.log_rig import MakeRig, Reply
from tests.support.polling import is_readable, until
from tests.support.stepped_log import Broker, settle


def eventfds() -> set[int]:
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            if "[eventfd]" in str(link.readlink()):
                found.add(int(link.name))
        except FileNotFoundError:
            continue  # the listing's own descriptor, closed already
    return found


def other_threads() -> list[Path]:
    return [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]


def is_asleep(task: Path) -> bool:
    """Return True if it waits for somebody, and not for disk or CPU, or has ended just now."""
    try:
        text = (task / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text[text.rindex(")") + 2] == "S"


def until_asleep() -> None:
    until(lambda: all(is_asleep(task) for task in other_threads()), "all threads sleep")


class Stalled(Broker):
    """A broker whose disk takes its time: the flusher thread is not woken until `release`."""

    def __init__(self, rig: MakeRig, partitions: int = 1) -> None:
        made = rig()
        before = eventfds()
        super().__init__(made, partitions)
        # The other one wakes the thread that syncs in the background.
        self.wake_fd, _ = sorted(eventfds() - before)
        self.thread_waits_at = -1

    def stall(self) -> None:
        """The thread goes on reading the descriptor it had; what is written from now on goes nowhere."""
        until_asleep()
        self.thread_waits_at = os.dup(self.wake_fd)
        nowhere = os.eventfd(0)
        os.dup2(nowhere, self.wake_fd)
        os.close(nowhere)

    def sync(self) -> None:
        """The thread does the round that it missed, and goes on with the descriptor that is there now.

        The log worker has not heard of it when this returns.
        """
        os.eventfd_write(self.thread_waits_at, 1)
        until(lambda: not is_readable(self.thread_waits_at), "the thread is awake")
        until_asleep()
        os.close(self.thread_waits_at)
        self.thread_waits_at = -1

    def release(self) -> None:
        self.sync()
        settle(self.process)

    def wait(self) -> Reply:
        until(self.is_answered, "an answer", lambda: self.process.work(5))
        (reply,) = self.rig.replies()
        return reply

    def is_answered(self) -> bool:
        return self.rig.from_log.waiting() > 0 or self.rig.produced.waiting() > 0

    def count(self, counter: Counter) -> int:
        return self.rig.memory.counters(LOG).get(counter)

    def close(self) -> None:
        if self.thread_waits_at >= 0:
            os.dup2(self.thread_waits_at, self.wake_fd)
            os.close(self.thread_waits_at)
        super().close()
