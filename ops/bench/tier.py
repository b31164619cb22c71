"""Measures tiered storage: `make bench-tier`. Nothing has a bound: device and object store decide most of it.

* loads: produces of 16 KiB, as fast as they are answered and 1,000 a second, fetches of 1 MiB, transactions;
  without an object store; with one that is a directory on the same disk, or in memory, and cuts every ten
  seconds; with one that is down; with mpbroker.remote.acks=ledger. The brokers take turns, and the others are
  stopped meanwhile. Beside them the bare device writes and syncs a commit round of one produce.
* reads: consumers that read a topic from its beginning: local segments; the same from a replica beside the
  broker; from the store with an empty cache (cold), and once more (warm).
* recovery: a restore and a take-over, over size and number of partitions. Nothing is tiered, all is in cuts.

With --record, figures go to docs/tier.json and from there into the tables of docs/PERFORMANCE.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from mpbroker.handlers.fetch.preferred_replicas import MARGIN_MS
from mpbroker.remote.ledger.registrations import read_registrations
from mpbroker.remote.store.directory import DirectoryStore
from ops.bench import device, frames, recorded, tiered, transactions
from ops.bench.brokers import BrokerError, Mpbroker
from ops.bench.recorded import Figures
from ops.bench.run import data_directory, progress
from ops.bench.scenarios import (
    FETCH_BYTES,
    LoadError,
    Scenario,
    attempts,
    build_generator,
    create_topic,
    prepare,
    run_load,
)
from ops.bench.tiered import PATIENCE_S, TOPIC
from ops.docs import figures, tiering

MEMORY: Final = Path("/dev/shm")
OFF: Final = {"remote.log.storage.system.enable": "false"}
ON: Final = {"mpbroker.remote.checkpoint.interval.ms": "10000"}
OFTEN: Final = {"mpbroker.remote.checkpoint.interval.ms": "1000"}
PRODUCED, FETCHED = "produced", "fetched"
PRODUCE_BYTES: Final = 16_384
CONNECTIONS: Final = 8
STEADY_PER_S: Final = 1_000
PRODUCERS, RECORDS_EACH = 8, 4
# What local retention leaves of the topic of produces, with and without an object store.
KEPT: Final = str(256 << 20)
DEVICE_S: Final = 0.5
GIB: Final = 1 << 30
RECOVERIES: Final = ((0.25, 10), (1.0, 10), (4.0, 10), (0.25, 1_000), (1.0, 1_000))
LEASE_MS: Final = 3_000
REPLICA_RACK: Final = "elsewhere"


class Taken(NamedTuple):
    """A turn of a load: requests or transactions a second, their p99, CPU of the broker for one."""

    per_s: float
    p99_us: float
    cpu_us: float


# ---- loads


def _load(request: frames.Request, rate: float, broker: Mpbroker, seconds: float) -> Taken:
    found = run_load(broker, request, CONNECTIONS, seconds, rate=rate)
    return Taken(found.requests_per_s, found.p99_us, found.broker_cpu_us)


def _transactions(broker: Mpbroker, seconds: float) -> Taken:
    tree = broker.tree()
    producers = transactions.made(broker, PRODUCERS)
    transactions.turn(producers, RECORDS_EACH, seconds / 4)
    before_s = tree.cpu_seconds()
    took = sorted(transactions.turn(producers, RECORDS_EACH, seconds))
    cpu_us = 1e6 * (tree.cpu_seconds() - before_s) / len(took)
    return Taken(len(took) / seconds, took[len(took) * 99 // 100] * 1e6, cpu_us)


LOADS: Final[Mapping[str, Callable[[Mpbroker, float], Taken]]] = {
    "produce": partial(_load, frames.produce(PRODUCED, 1, PRODUCE_BYTES), 0),
    "steady": partial(_load, frames.produce(PRODUCED, 1, PRODUCE_BYTES), STEADY_PER_S),
    "fetch": partial(_load, frames.fetch(FETCHED, 0, FETCH_BYTES), 0),
    "transactions": _transactions,
}


def _started(broker: Mpbroker, mode: str) -> Mpbroker:
    """Start a broker, make the topics of all loads, and pause it."""
    broker.start()
    create_topic(broker, PRODUCED)
    create_topic(broker, transactions.TOPIC, transactions.PARTITIONS)
    prepare(Scenario("fetch", "fetch", FETCH_BYTES, CONNECTIONS), broker, FETCHED)
    is_tiered = mode not in ("off", "ledger")
    if is_tiered:
        for topic in (PRODUCED, FETCHED, transactions.TOPIC):
            tiered.alter(broker, tiered.TIERED, topic)
    tiered.alter(broker, {"local.retention.bytes" if is_tiered else "retention.bytes": KEPT}, PRODUCED)
    broker.tree().pause()
    return broker


def _median(turns: Sequence[Taken]) -> Figures:
    return {name: median(getattr(one, name) for one in turns) for name in Taken._fields}


def loads(place: Path | None, seconds: float, rounds: int) -> Figures:
    """Run all loads in all modes."""
    build_generator()
    with ExitStack() as stack:
        disk = stack.enter_context(data_directory(place))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        made = {
            "off": tiered.broker_of(disk / "off", disk / "none", OFF),
            "disk": tiered.broker_of(disk / "disk", disk / "disk-store", ON),
            "memory": tiered.broker_of(disk / "memory", memory, ON),
            "down": tiered.broker_of(disk / "down", disk / "down-store", ON),
            "ledger": tiered.broker_of(
                disk / "ledger", disk / "ledger-store", ON | {"mpbroker.remote.acks": "ledger"}
            ),
        }
        brokers = {}
        for mode, broker in made.items():
            stack.callback(broker.kill)
            brokers[mode] = _started(broker, mode)
        (disk / "down-store").rename(disk / "away")
        cpu_s = {mode: tiered.tier_cpu_s(broker) for mode, broker in brokers.items() if mode != "off"}
        bare, found = [], {load: {mode: list[Taken]() for mode in brokers} for load in LOADS}
        for number in range(rounds):
            bare.append(device.measure(disk, device.whole_sectors(PRODUCE_BYTES), DEVICE_S))
            for load, take in LOADS.items():
                for mode in sorted(brokers, reverse=bool(number % 2)):
                    with brokers[mode].awake() as broker:
                        taken = take(broker, seconds)
                    found[load][mode].append(taken)
                    progress.print(f"[dim]{load} {mode}: {taken.per_s:,.0f}/s, p99 {taken.p99_us:,.0f} us")
        tier = {}
        for mode in ("disk", "memory"):
            with brokers[mode].awake() as broker:
                pending = tiered.ask(broker)["pending_bytes"]
                tiered.settle(broker)
                copied = tiered.ask(broker)["copied_bytes"]
                spent_s = tiered.tier_cpu_s(broker) - cpu_s[mode]
            tier[mode] = {
                "cpu_s_per_gib": spent_s * GIB / copied,
                "copied_bytes": copied,
                "pending_bytes": pending,
            }
    return {
        "device": {name: median(getattr(one, name) for one in bare) for name in ("p50_us", "p99_us")},
        "loads": {load: {mode: _median(turns) for mode, turns in one.items()} for load, one in found.items()},
        "tier": tier,
    }


# ---- reads


def _read_all(broker: Mpbroker, records: int, rack: str = "") -> tuple[float, float]:
    """Read a topic's records from the beginning; return the seconds, and the CPU seconds of the broker."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "check.crcs": True}
    consumer = Consumer({**settings, "client.rack": rack})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    tree = broker.tree()
    found, begun, before_s = 0, time.monotonic(), tree.cpu_seconds()
    while found < records:
        found += len(consumer.consume(100, timeout=0.1))
    took_s = time.monotonic() - begun
    consumer.close()
    return took_s, tree.cpu_seconds() - before_s


def reads(place: Path | None, megabytes: int) -> Figures:
    """Read local segments, the same from a replica, then from the store."""
    found: Figures = {}
    with data_directory(place) as directory:
        store = directory / "store"
        broker = tiered.broker_of(directory / "owner", store, OFTEN)
        flags = "--standby", "--read-only"
        its_own = {"node.id": "2", "broker.rack": REPLICA_RACK}
        replica = tiered.broker_of(directory / "replica", store, OFTEN | its_own, flags)

        def read(name: str, rack: str = "") -> None:
            took_s, cpu_s = _read_all(broker, records, rack)
            found[name] = {"mib_per_s": size / took_s / (1 << 20), "cpu_s_per_gib": cpu_s * GIB / size}
            progress.print(f"[dim]read {name}: {found[name]}")

        size = megabytes << 20
        with tiered.started(broker):
            records = tiered.fill(broker, size, value_bytes=100_000)
            read("local")
            with tiered.started(replica):
                _await_replica(DirectoryStore(store))
                read("replica", REPLICA_RACK)
            # Handlers that have read a segment keep it open for a while after it is deleted.
            broker.stop()
        with tiered.started(broker):
            tiered.alter(broker, tiered.TIERED | {"local.retention.bytes": "0"})
            tiered.settle(broker)
            for _ in attempts(PATIENCE_S):
                if len(list((broker.log_dir / f"{TOPIC}-0").glob("*.log"))) == 1:
                    break
            read("cold")
            read("warm")
    return found


def _await_replica(store: DirectoryStore) -> None:
    now_ms = time.time() * 1000 + MARGIN_MS
    for _ in attempts(PATIENCE_S):
        if any(one.readable_ms > now_ms for one in read_registrations(store)):
            return


# ---- recovery


def recovery(place: Path | None) -> Figures:
    """Restore, and take over, brokers of several sizes."""
    rows = []
    for gib, partitions in RECOVERIES:
        with data_directory(place) as directory:
            rows.append({"gib": gib, "partitions": partitions, **_recover(directory, gib, partitions)})
        progress.print(f"[dim]{rows[-1]}")
    return {"lease_ms": LEASE_MS, "rows": rows}


def _recover(directory: Path, gib: float, partitions: int) -> Figures:
    store = directory / "store"
    settings = OFTEN | {"mpbroker.remote.lease.ms": str(LEASE_MS)}
    owner = tiered.broker_of(directory / "owner", store, settings)
    restored = tiered.broker_of(
        directory / "restored", store, settings | {"mpbroker.remote.read.only": "true"}
    )
    standby = tiered.broker_of(directory / "standby", store, settings | {"node.id": "2"}, ("--standby",))
    with tiered.started(owner):
        tiered.fill(owner, int(gib * GIB), partitions)
        tiered.cut(owner)
        restore_s = _restore(store, restored.log_dir)
        with tiered.started(restored):
            pass
        shutil.rmtree(restored.directory)
        with tiered.started(standby):
            for _ in attempts(PATIENCE_S):
                # Only one that the ledger names may take over.
                if "broker 2 on" in owner.output():
                    break
            owner.kill()
            begun = time.monotonic()
            _await_leader(standby)
            take_over_s = time.monotonic() - begun
    return {"restore_s": restore_s, "start_s": restored.ready_s, "take_over_s": take_over_s}


def _restore(store: Path, log_dir: Path) -> float:
    begun = time.monotonic()
    command = (sys.executable, "-m", "mpbroker", "restore", "--from", f"file://{store}")
    done = subprocess.run([*command, "--log-dirs", log_dir], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerError(f"the restore has failed: {done.stderr}")
    return time.monotonic() - begun


def _await_leader(broker: Mpbroker) -> None:
    """Wait until a broker takes a record."""
    request = frames.produce(TOPIC, 1, 100)
    for _ in attempts(PATIENCE_S):
        try:
            with frames.connected(broker.address) as connection:
                if not frames.exchange(connection, request)[0]:
                    return
        except OSError:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recorded.add_only(parser, list(tiering.TIER))
    parser.add_argument("--seconds", type=float, default=2, help="of a turn of a load (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each load (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=1_000, help="that consumers read (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where brokers and store are (TMPDIR)")
    parser.add_argument("--record", action="store_true", help="keep the figures in docs")
    given = parser.parse_args()
    parts: recorded.Parts = {
        "loads": partial(loads, given.directory, given.seconds, given.rounds),
        "reads": partial(reads, given.directory, given.megabytes),
        "recovery": partial(recovery, given.directory),
    }
    try:
        names = given.only or list(parts)
        found = recorded.measure(parts, names, tiering.TIER_FILE if given.record else None)
    except (BrokerError, LoadError, OSError) as error:
        print(f"bench-tier: {error}", file=sys.stderr)
        return 1
    for name in names:
        print(*tiering.TIER[name](found[name]), sep="\n")
    if given.record:
        figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
