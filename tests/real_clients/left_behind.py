"""What mpbroker leaves in its log directories after faults, for Kafka to begin with, seed by seed.

    python -m tests.real_clients.left_behind --seeds 100 --first 0

A complaint names the partition, whose name says the fault and its seed.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.inspection import repair
from mpbroker.inspection.findings import Severity
from mpbroker.ipc.process import FatalError
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.records.compression import Codec
from mpbroker.storage.checkpoints import read_topic_id, write_topic_id
from mpbroker.storage.names import INDEX_SUFFIX, METADATA_TOPIC, PARTITION_METADATA, TIME_INDEX_SUFFIX
from ops.bench.brokers import Mpbroker
from tests.log.test_faults import CASES, ROOT, built_faults
from tests.real_clients.test_compaction import COMPACTED, Load, swaps
from tests.real_clients.test_compaction import FLAGS as COMPACTING
from tests.support import flips
from tests.support.adoption import Adopting, complaints
from tests.support.client_adapters import CODECS, confluent_write_idempotent
from tests.support.client_samples import sample_records
from tests.support.client_tools import eventually
from tests.support.compacted_segments import Segments
from tests.support.crash_checks import built_tracer, recovered, traced
from tests.support.crash_images import Disk, write_image
from tests.support.flipped_bits import flip
from tests.support.real_brokers import create_topic, kill_worker, served, stop_cleanly

# A call that fails is one of the first so many of its kind.
CALLS = 40
KEYS = 12
PARTITIONS = 4
SEGMENT_BYTES = 1 << 20
# Of a workload whose power is cut.
STEPS = 220
SEEDS_AT_ONCE = 10


def partitions_of(home: Path) -> list[Path]:
    """Return the partitions of topics, without those that are to be deleted."""
    found = (path.parent for path in home.glob(f"*/{PARTITION_METADATA}"))
    return sorted(path for path in found if "." not in path.name and not path.name.startswith(METADATA_TOPIC))


def after_power_cuts(
    kafka: Adopting, tracer: Path, scratch: Path, seed: int, *, cuts: int, steps: int
) -> None:
    """Cut the power so many times under a workload of so many steps.

    Recover after each cut, and close half of the logs cleanly then.
    """
    scratch.mkdir()
    chance = random.Random(seed)
    run = traced(tracer, scratch, seed, *(["several"] if seed % 2 else []), str(steps))
    disk = Disk(run.root)
    moments = sorted(chance.sample(range(len(run.events)), cuts))
    for number, event in enumerate(run.events):
        if moments and moments[0] == number:
            moments.pop(0)
            directory = scratch / "image"
            write_image(disk.image(chance), directory)
            stopped = number % 2 == 0
            found, _ = recovered(
                directory, PartitionLog.close_cleanly if stopped else PartitionLog.close_files
            )
            for path in partitions_of(directory):
                topic_id = read_topic_id(path)
                if topic_id is not None and (topic_id.hex(), int(path.name.rpartition("-")[2])) in found:
                    kafka.take(f"cut-{seed}-before-{number}", path, stopped=stopped)
            shutil.rmtree(directory)
        disk.take(number, event)


def after_a_flip(kafka: Adopting, images: list[flips.Image], scratch: Path, seed: int) -> None:
    """Found by a broker, repaired where it costs records, and the broker started again."""
    one, work = flips.choose(images, seed), scratch / "work"
    shutil.copytree(one.image.directory, work)
    try:
        flip(work / one.file, one.at, one.mask)
        outcome = flips.run(work, scratch, stops=True)
        repaired = [path.name for path in partitions_of(work) if not outcome.fatal and is_repaired(path)]
        if repaired:
            outcome = flips.run(work, scratch, stops=True)
        if not outcome.fatal:
            for number, read in enumerate(outcome.partitions):
                if not read.offline:
                    has_gaps = f"t-{number}" in repaired
                    kafka.take(f"flip-{seed}", work / f"t-{number}", stopped=True, has_gaps=has_gaps)
    finally:
        shutil.rmtree(work)


def is_repaired(partition: Path) -> bool:
    """As an operator does it: what can be made anew is deleted, what cannot is cut out."""
    with suppress(repair.CannotRepair, FatalError), repair.locked(partition):
        plan = repair.plan(partition)
        if plan.cuts or plan.lowered is not None:
            repair.carry_out(plan)
        for one in plan.partition.all_findings:
            if one.severity is Severity.DERIVED and one.path.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
                Path(one.path).unlink(missing_ok=True)
        return bool(plan.partition.all_findings)
    return False


def after_a_failed_call(kafka: Adopting, faults: Path, scratch: Path, seed: int) -> None:
    """A write without room, a sync or a read that failed, and all after it; then a start without faults."""
    chance = random.Random(seed)
    phase, kind, error = chance.choice(CASES)
    call = chance.randrange(1, CALLS)
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(faults), "FAULT_CALL": str(call)}
    command = [sys.executable, "-m", "tests.support.fault_workload", str(scratch), phase, kind, str(error)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for home in sorted(scratch.glob("*/data?")):
        for path in partitions_of(home):
            kafka.take(f"fault-{seed}-{phase}-{kind}-{call}", path, stopped=False)


def after_compaction(kafka: Adopting, scratch: Path, seed: int) -> None:
    """Run the cleaner alone a few times, then open and close the partition."""
    chance = random.Random(seed)
    log = Segments(scratch / "c-0")
    log.directory.mkdir(parents=True)
    topic_id = chance.randbytes(16)
    write_topic_id(log.directory, topic_id)
    log.path(0).touch()
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randint(1, 30)):
            pairs = [(b"%d" % chance.randrange(KEYS), chance.choice((None, chance.randbytes(50))))]
            log.append(pairs * chance.randint(1, 3), codec=chance.choice(list(Codec)))
            if chance.random() < 0.3:
                log.roll()
        log.roll()
        log.clean(segment_bytes=chance.choice((300, 2000, 1 << 20)))
    config = resolve(BrokerConfig(), {"cleanup.policy": "compact"})
    load(log.directory, "c", 0, topic_id, config, Known(clean=False), str).close_cleanly()
    kafka.take(f"compacted-{seed}", log.directory, stopped=True, has_gaps=True)


def after_kills(kafka: Adopting, scratch: Path) -> None:
    """Two log workers under idempotent producers and a cleaner: one killed, then all, then a clean stop."""
    scratch.mkdir()
    with served(Mpbroker(scratch, flags=("--log-workers", "2", *COMPACTING))) as broker:
        create_topic(broker.bootstrap, "mixed", PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        create_topic(broker.bootstrap, "kept", 1, COMPACTED)
        write_mixed(broker, 0)
        # Each record is read by Kafka's tool, Kafka, two consumers and us.
        with Load(broker, "kept", "lz4", pause_s=0.1):
            eventually(lambda: swaps(broker) > 0, "it is compacted")
            kill_worker(broker, 1)
            write_mixed(broker, 1)
        broker.kill()
        take_all(kafka, "killed", broker.log_dir, stopped=False)
        broker.start()
        write_mixed(broker, 2)
        stop_cleanly(broker)
        take_all(kafka, "stopped", broker.log_dir, stopped=True)


def write_mixed(broker: Mpbroker, seed: int) -> None:
    """A producer for each codec, side by side: each begins with half a second in which it waits."""

    def write(number: int) -> None:
        records = sample_records(PARTITIONS, 200, len(CODECS) * seed + number)
        confluent_write_idempotent(broker.bootstrap, "mixed", records, CODECS[number])

    with ThreadPoolExecutor(len(CODECS)) as producers:
        list(producers.map(write, range(len(CODECS))))


def take_all(kafka: Adopting, name: str, home: Path, *, stopped: bool) -> None:
    for path in partitions_of(home):
        kafka.take(f"{name}-{path.name}", path, stopped=stopped, has_gaps=path.name.startswith("kept"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Apache Kafka on what is left after each fault")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("mpbroker").setLevel(logging.CRITICAL)
    found = 0
    with workplace() as place:
        for first in range(asked.first, asked.first + asked.seeds, SEEDS_AT_ONCE):
            seeds = range(first, min(first + SEEDS_AT_ONCE, asked.first + asked.seeds))
            with place.kafka() as kafka:
                for seed in seeds:
                    place.fill(kafka, seed)
                said = complaints(kafka)
                print(f"seeds {seeds.start} to {seeds.stop - 1}: {len(kafka.lefts)} partitions", flush=True)
                print(*said, sep="\n", end="\n" * bool(said), flush=True)
                found += len(said)
    raise SystemExit(1 if found else 0)


@dataclass
class Place:
    """Where directories are made."""

    tracer: Path
    faults: Path
    shared: Path
    images: list[flips.Image]

    def fill(self, kafka: Adopting, seed: int) -> None:
        """One seed of everything but whole brokers; a partition's name says of which it is."""
        self.cut(kafka, seed, cuts=6, steps=STEPS)
        self.damage(kafka, seed)

    def cut(self, kafka: Adopting, seed: int, *, cuts: int, steps: int) -> None:
        with TemporaryDirectory() as name:
            after_power_cuts(kafka, self.tracer, Path(name) / "cuts", seed, cuts=cuts, steps=steps)

    def damage(self, kafka: Adopting, seed: int, flips: int = 4) -> None:
        with TemporaryDirectory() as name:
            for number in range(flips):
                after_a_flip(kafka, self.images, self.shared, flips * seed + number)
            after_a_failed_call(kafka, self.faults, Path(name) / "faults", seed)
            after_compaction(kafka, Path(name) / "compacted", seed)

    @contextmanager
    def kafka(self) -> Iterator[Adopting]:
        with TemporaryDirectory() as name:
            yield Adopting(Path(name))


@contextmanager
def workplace() -> Iterator[Place]:
    with built_tracer() as tracer, built_faults() as faults, flips.workplace() as (scratch, images):
        yield Place(tracer, faults, scratch, images)


if __name__ == "__main__":
    main()
