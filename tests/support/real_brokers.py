"""Brokers of real processes: started, given settings, stopped, and the topics on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from mpbroker.ipc.control_client import ControlClient
from ops.bench.brokers import Broker, Kafka, Mpbroker
from ops.bench.processes import title_of
from tests.support.client_tools import SMALL_JVM, eventually
from tests.support.polling import PATIENCE_S

SHARED_MEMORY = ("/dev/shm/", "/run/")


ADMIN_TIMEOUT_S = PATIENCE_S


TopicMaker = Callable[..., str]


# Of brokers whose tests have transactions: their timeouts are looked at often, and their topics are small.
TRANSACTIONS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}


# Exit codes of a broker that a test has stopped, the last one that of a JVM, or has killed.
ENDED = (0, -signal.SIGKILL, 143)


AnyBroker = TypeVar("AnyBroker", bound=Broker)


def make_broker(directory: Path) -> Broker:
    directory.mkdir(exist_ok=True)
    if os.environ.get("MPBROKER_TEST_BROKER") == "kafka":
        return Kafka(directory)
    return Mpbroker(directory)


def with_settings(broker: AnyBroker, settings: Mapping[str, str]) -> AnyBroker:
    """Set a broker's settings before it is started; Apache Kafka gets a small JVM."""
    if isinstance(broker, Mpbroker):
        broker.flags = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    elif isinstance(broker, Kafka):
        broker.properties = [f"{name}={value}" for name, value in settings.items()]
        broker.jvm = SMALL_JVM
    return broker


def shared_files(broker: Broker) -> set[Path]:
    """Named shared memory that the broker's processes have mapped, and what lies in its runtime directory."""
    files: set[Path] = set()
    for member in broker.tree().members():
        # One that ends meanwhile, as a process does that is replaced, has nothing mapped.
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            paths = [region.path for region in member.memory_maps(grouped=True)]
            files |= {Path(path) for path in paths if path.startswith(SHARED_MEMORY)}
    if isinstance(broker, Mpbroker):
        files |= {path for path in broker.runtime_dir.rglob("*") if not path.is_dir()}
    return {path for path in files if path.exists()}


def pid_of(broker: Broker, title: str) -> int:
    """The process of the broker with this title; 0 while there is none."""
    return next((one.pid for one in broker.tree().members() if title_of(one) == title), 0)


def kill_process(broker: Broker, title: str, sent: signal.Signals = signal.SIGKILL) -> None:
    """Send the process with this title a signal, and wait for its successor."""
    was = pid_of(broker, title)
    os.kill(was, sent)
    eventually(lambda: pid_of(broker, title) not in (0, was), f"{title} is replaced")


def kill_worker(broker: Broker, worker: int) -> None:
    kill_process(broker, f"log {worker}")


def control(broker: Mpbroker) -> ControlClient:
    """Return a client of the supervisor, which may be late on a machine that is busy."""
    return ControlClient(broker.runtime_dir, timeout_seconds=PATIENCE_S)


def stop_cleanly(broker: Broker) -> None:
    """SIGTERM must end every process of the broker, and leave nothing in memory."""
    members, shared = broker.tree().members(), shared_files(broker)
    code = broker.stop()
    # A JVM that ends because of SIGTERM says so in its exit code.
    assert code == (143 if isinstance(broker, Kafka) else 0), broker.output()
    _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    assert not alive, f"processes outlive the broker: {alive}"
    left = {path for path in shared if path.exists()}
    assert not left, f"shared memory outlives the broker: {left}"


def end(broker: Broker) -> None:
    """Kills a broker that still runs: its test failed, and what the broker says of itself may tell why."""
    if isinstance(broker, Mpbroker) and broker.process is not None and broker.process.poll() is None:
        command = [sys.executable, "-m", "mpbroker", "ctl", "status", "--log-dirs", str(broker.log_dir)]
        with suppress(subprocess.TimeoutExpired):
            status = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            print(status.stdout, status.stderr)
        print(broker.output())
    broker.kill()


@contextmanager
def served(broker: AnyBroker) -> Iterator[AnyBroker]:
    """A broker that runs, must stop cleanly unless its test has ended it, and outlives no failure."""
    try:
        broker.start()
        yield broker
        if broker.process is not None and broker.process.returncode not in ENDED:
            stop_cleanly(broker)
    finally:
        end(broker)


def create_topic(bootstrap: str, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])
    asked[name].result(ADMIN_TIMEOUT_S)
    eventually(lambda: name in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics, f"{name} is listed")
