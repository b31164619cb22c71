"""Measures tiered storage: `make bench-tier`. Nothing has a bound: the object store decides most of it.

* Produces of 16 KiB and then fetches of 1 MiB, with tiering off, on, and on with a store that is down: rate,
  p99, CPU of the broker for a request, CPU of the tier for a GiB that it has uploaded. A segment is sealed
  after 16 MiB, so that uploads go on while the load runs. The same on an untiered topic with
  mpbroker.remote.acks=ledger: each commit round is in the store before it is acknowledged.
* Consumers that read a topic from its beginning: local segments, then the same records from the store with an
  empty cache (cold), and once more (warm).

The store is a directory beside the broker's own, on the same disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.ipc.control_client import ControlClient
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from ops.bench.scenarios import attempts, build_generator, create_topic, run_load

OFF, ON, DOWN, LEDGER = "off", "on", "store down", "ledger"
TOPIC: Final = "loaded"
SEGMENT_BYTES: Final = 16 << 20
PRODUCE_BYTES, FETCH_BYTES = 16_384, 1 << 20
CONNECTIONS: Final = 8
VALUE_BYTES: Final = 100_000
PATIENCE_S: Final = 300.0
TIERED: Final = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}


def broker_in(directory: Path, mode: str, more: Mapping[str, str] = MappingProxyType({})) -> Mpbroker:
    """Return a broker that looks for segments to upload and to delete ten times a second."""
    store = directory / "store"
    store.mkdir(parents=True)
    flags = {
        "remote.log.storage.system.enable": str(mode != OFF).lower(),
        "mpbroker.remote.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "1000",
        # The batches of the load are old.
        "log.retention.ms": "-1",
        "log.segment.bytes": str(SEGMENT_BYTES),
        "mpbroker.remote.acks": "ledger" if mode == LEDGER else "local",
        **more,
    }
    pairs = [f"{key}={value}" for key, value in flags.items()]
    return Mpbroker(directory, flags=[word for pair in pairs for word in ("-o", pair)])


def alter(broker: Mpbroker, settings: dict[str, str]) -> None:
    host, port = broker.address
    with Admin(Cluster(parse_servers(f"{host}:{port}"), ClientConfig())) as admin:
        admin.alter_topic(TOPIC, settings)


def ask(broker: Mpbroker, command: str) -> dict[str, Any]:
    found: dict[str, Any] = ControlClient(broker.runtime_dir).call(command)
    return found


def tier_cpu_s(broker: Mpbroker) -> float:
    return sum(
        float(one.get("cpu_s", 0)) for one in ask(broker, "status")["processes"] if one["name"] == "tier"
    )


def loads(directory: Path, mode: str, seconds: float) -> None:
    """Run the loads in one mode, and print their rows."""
    broker = broker_in(directory, mode)
    try:
        broker.start()
        create_topic(broker, TOPIC)
        if mode not in (OFF, LEDGER):
            alter(broker, TIERED)
        if mode == DOWN:
            (directory / "store").rename(directory / "away")
        before_s = tier_cpu_s(broker)
        fetch = frames.fetch(TOPIC, 1, FETCH_BYTES)
        for name, request in (("produce", frames.produce(TOPIC, 1, PRODUCE_BYTES)), ("fetch", fetch)):
            found = run_load(broker, request, CONNECTIONS, seconds)
            print(
                f"{name:8} {mode:10} {found.requests_per_s:>9,.0f}/s  p99 {found.p99_us:>8,.0f} us  "
                f"{found.broker_cpu_us:>7,.1f} us CPU a request",
                flush=True,
            )
        if mode == ON:
            settle(broker)
            copied = ask(broker, "remote")["copied_bytes"]
            spent_s = tier_cpu_s(broker) - before_s
            print(f"tier     {mode:10} {spent_s / (copied / (1 << 30)):.2f} s CPU a GiB, of {copied:,} bytes")
        broker.stop()
    finally:
        broker.kill()


def settle(broker: Mpbroker) -> None:
    """Wait until all that can be is uploaded."""
    copied = -1
    for _ in attempts(PATIENCE_S):
        found = ask(broker, "remote")
        if found["copied_bytes"] == copied and not found["pending_segments"]:
            return
        copied = found["copied_bytes"]
        time.sleep(0.5)


def read_all(broker: Mpbroker, records: int) -> float:
    """Read a topic's records from the beginning; return the rate in MiB/s."""
    host, port = broker.address
    consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": "reader", "check.crcs": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found, begun = 0, time.monotonic()
    while found < records:
        found += len(consumer.consume(100, timeout=0.1))
    took_s = time.monotonic() - begun
    consumer.close()
    return records * VALUE_BYTES / took_s / (1 << 20)


def reads(directory: Path, megabytes: int) -> None:
    """Read local segments, and the same from the store; print the rates."""
    broker = broker_in(directory, ON)
    try:
        broker.start()
        create_topic(broker, TOPIC)
        alter(broker, TIERED)
        records = (megabytes << 20) // VALUE_BYTES
        request = frames.produce(TOPIC, 1, VALUE_BYTES)
        with frames.connected(broker.address) as connection:
            for _ in range(records):
                error, _ = frames.exchange(connection, request)
                assert not error, f"a batch is refused: error {error}"
        settle(broker)
        print(f"read     local      {read_all(broker, records):>9,.0f} MiB/s", flush=True)
        alter(broker, {"local.retention.bytes": "0"})
        segments = broker.log_dir / f"{TOPIC}-0"
        for _ in attempts(PATIENCE_S):
            if len(list(segments.glob("*.log"))) == 1:
                break
            time.sleep(0.2)
        for name in ("cold", "warm"):
            print(f"read     {name:10} {read_all(broker, records):>9,.0f} MiB/s", flush=True)
        broker.stop()
    finally:
        broker.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="of each load")
    parser.add_argument("--megabytes", type=int, default=500, help="that consumers read")
    parser.add_argument("--directory", help="where broker and store are (default: a temporary directory)")
    given = parser.parse_args(arguments)
    build_generator()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        for mode in (OFF, LEDGER, ON, DOWN):
            loads(Path(directory) / mode.replace(" ", "-"), mode, given.seconds)
        reads(Path(directory) / "reads", given.megabytes)
    return 0


if __name__ == "__main__":
    main()
