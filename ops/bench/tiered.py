"""Brokers with an object store for benchmarks: started, filled, and waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.ipc.control_client import ControlClient
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from ops.bench.processes import title_of
from ops.bench.scenarios import attempts, create_topic

TOPIC: Final = "loaded"
SEGMENT_BYTES: Final = 64 << 20
PATIENCE_S: Final = 600.0
TIERED: Final = {"remote.storage.enable": "true"}
NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


def broker_of(
    directory: Path, store: Path, settings: Mapping[str, str] = NO_SETTINGS, flags: tuple[str, ...] = ()
) -> Mpbroker:
    """Return a broker that looks for segments to upload and to delete ten times a second."""
    store.mkdir(parents=True, exist_ok=True)
    all_settings = {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "1000",
        # The batches of the load are old.
        "log.retention.ms": "-1",
        "log.segment.bytes": str(SEGMENT_BYTES),
        **settings,
    }
    pairs = [f"{key}={value}" for key, value in all_settings.items()]
    return Mpbroker(directory, flags=[*flags, *(word for pair in pairs for word in ("-o", pair))])


@contextmanager
def started(*brokers: Mpbroker) -> Iterator[None]:
    """Start brokers; stop them at the end if they still run, and kill them after an error."""
    try:
        for broker in brokers:
            broker.start()
        yield
        for broker in reversed(brokers):
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()
    finally:
        for broker in brokers:
            broker.kill()


def alter(broker: Mpbroker, settings: Mapping[str, str], topic: str = TOPIC) -> None:
    with Admin(Cluster(parse_servers(broker.bootstrap), ClientConfig())) as admin:
        admin.alter_topic(topic, dict(settings))


def ask(broker: Mpbroker, command: str = "remote") -> dict[str, Any]:
    found: dict[str, Any] = ControlClient(broker.runtime_dir).call(command)
    return found


def tier_cpu_s(broker: Mpbroker) -> float:
    return sum(
        one.cpu_times().user + one.cpu_times().system
        for one in broker.tree().members()
        if title_of(one) == "tier"
    )


def fill(broker: Mpbroker, size: int, partitions: int = 1, value_bytes: int = 900_000) -> int:
    """Make the topic, and produce records to its partitions in turn; return how many."""
    value_bytes = min(value_bytes, size // partitions)
    create_topic(broker, TOPIC, partitions, timeout_s=int(PATIENCE_S))
    request, count = frames.produce(TOPIC, 1, value_bytes), size // value_bytes
    with frames.connected(broker.address) as connection:
        for number in range(count):
            error, _ = frames.exchange(connection, request.for_partition(number % partitions))
            assert not error, f"a batch is refused: error {error}"
    return count


def settle(broker: Mpbroker) -> None:
    """Wait until all that can be is uploaded."""
    copied = -1
    for _ in attempts(PATIENCE_S):
        found = ask(broker)
        if found["copied_bytes"] == copied and not found["pending_segments"]:
            return
        copied = found["copied_bytes"]
        time.sleep(0.5)


def cut(broker: Mpbroker) -> None:
    """Wait for a cut that has all that is written now."""
    now_ms = time.time() * 1000
    for _ in attempts(PATIENCE_S):
        if (ask(broker)["last_cut_ms"] or 0) > now_ms:
            return
