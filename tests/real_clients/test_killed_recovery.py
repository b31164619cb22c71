"""A start after a kill, with several log workers, of which somebody dies or hangs while they recover."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

from ops.bench.brokers import Mpbroker
from ops.bench.processes import title_of
from tests.real_clients.test_log_workers import JOURNAL, PARTITIONS, read_all, write_some
from tests.support.forms import each
from tests.support.polling import TRIES
from tests.support.real_brokers import create_topic, served, stop_cleanly

# Ten times this a recovery may stand still.
HASTY = ("-o", "handler.hang.timeout.ms=100", "-o", "num.recovery.threads.per.data.dir=2")
ROUNDS = 2


class Hunter:
    """Waits for a process whose title begins so, and sends it a signal, once."""

    def __init__(self, broker: Mpbroker, title: str, sent: signal.Signals) -> None:
        self.broker = broker
        self.title = title
        self.sent = sent
        self.hit = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._hunt, daemon=True)

    def __enter__(self) -> Hunter:
        # Not the process of the start before.
        self.broker.process = None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _hunt(self) -> None:
        while not self._ends.is_set() and not self.hit:
            process = self.broker.process
            if process is not None:
                self.hit = self._shoot(psutil.Process(process.pid))
            self._ends.wait(0.001)

    def _shoot(self, supervisor: psutil.Process) -> int:
        for one in supervisor.children(recursive=True):
            try:
                if title_of(one).startswith(self.title):
                    os.kill(one.pid, self.sent)
                    return one.pid
            except (psutil.Error, ProcessLookupError):
                continue
        return 0


@each(
    "title,sent",
    short=[("recovery", signal.SIGKILL), ("log 1", signal.SIGKILL)],
    long=[
        ("recovery", signal.SIGKILL),
        ("recovery", signal.SIGSTOP),
        ("log 0", signal.SIGKILL),
        ("log 1", signal.SIGKILL),
    ],
)
def test_the_start_goes_on_and_loses_nothing(tmp_path: Path, title: str, sent: signal.Signals) -> None:
    with served(Mpbroker(tmp_path, flags=("--log-workers", "2", *JOURNAL, *HASTY))) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        for number in range(ROUNDS):
            write_some(broker, 3 * number)
            # A recovery may be over before it is seen: then another one.
            assert any(start_hunted(broker, title, sent, range(3 * number + 3)) for _ in range(TRIES))
        stop_cleanly(broker)
        broker.start()
        check(broker, range(3 * ROUNDS))


def start_hunted(broker: Mpbroker, title: str, sent: signal.Signals, numbers: Sequence[int]) -> bool:
    """After a kill; whether there was anybody to be hit."""
    broker.kill()
    with Hunter(broker, title, sent) as hunter:
        broker.start()
        check(broker, numbers)
    return hunter.hit > 0


def check(broker: Mpbroker, numbers: Sequence[int]) -> None:
    assert read_all(broker) == {partition: list(numbers) for partition in range(PARTITIONS)}
