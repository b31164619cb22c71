"""The power fails at any moment: what was acknowledged or shown to a reader is there at the next start.

A workload runs once under a tracer, then many power cuts are made of its trace, each with other sectors and
names lost, and recovered by the code that recovers. `CRASH_SEEDS=100-200` tries other workloads.
"""

from __future__ import annotations

import bisect
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log import futures, names
from mpbroker.log.checkpoints import read_topic_id
from mpbroker.log.home import LogDir
from mpbroker.log.partition_log import PartitionLog, segments_of
from mpbroker.log.recovery import Known, PartitionDamaged, load
from mpbroker.records.batch import CRC_AT
from mpbroker.records.iterate import iterate_batches
from tests.log.crash_images import MARK, Disk, Event, read_trace, write_image

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("native") / "trace.c"
FIRST, _, LAST = os.environ.get("CRASH_SEEDS", "1-2").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
CUTS = 150
IMAGES_PER_CUT = 2
CONFIG = resolve(BrokerConfig(), {})

Partition = tuple[str, int]


@dataclass
class Promises:
    """What the workload had been told when the power failed."""

    sent: dict[Partition, set[int]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[Partition, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    visible: dict[Partition, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def take(self, what: str, topic: str = "", *more: int) -> None:
        if what == "removed":
            self.removed.add(topic)
        elif what == "sent":
            self.sent[topic, more[0]].add(more[1])
        elif what == "acked":
            self.acked[topic, more[0]][more[2]] = more[1]
        elif what == "visible":
            self.visible[topic, more[0]] = more[1]


@dataclass
class Run:
    events: list[Event]
    root: int
    offsets: dict[Partition, dict[int, int]]  # every answered batch by its base offset, also later ones


@contextmanager
def built_tracer() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "trace.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        yield library


@pytest.fixture(scope="module")
def tracer() -> Iterator[Path]:
    with built_tracer() as library:
        yield library


def traced(tracer: Path, directory: Path, seed: int, *how: str) -> Run:
    trace = directory / "trace"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_PRELOAD": str(tracer),
        "TRACE_ROOT": str(directory / "data0"),
        "TRACE_FILE": str(trace),
    }
    command = [sys.executable, "-m", "tests.log.crash_workload", str(directory), str(seed), *how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    events = read_trace(trace)
    offsets: dict[Partition, dict[int, int]] = defaultdict(dict)
    for event in events:
        if event.kind == MARK:
            what, *more = json.loads(event.data)
            if what in ("acked", "appended"):
                topic, partition, crc, offset = more
                offsets[topic, partition][offset] = crc
    return Run(events, (directory / "data0").stat().st_ino, offsets)


def recovered(
    directory: Path, close: Callable[[PartitionLog], None] = PartitionLog.close_files
) -> tuple[dict[Partition, dict[int, tuple[int, int]]], list[str]]:
    """Of each partition its batches by base offset, as (count, CRC); and what was found to be damaged."""
    found: dict[Partition, dict[int, tuple[int, int]]] = {}
    damaged = []
    home = LogDir(0, directory, group=True, failed=False)
    home.take_over(str)
    assert home.journal is None or list(home.journal.records()) == []
    for path, parsed in list(home.partitions()):
        topic_id = read_topic_id(path) if not parsed.suffix else None
        if topic_id is None:
            continue
        key = (parsed.topic, parsed.partition)
        known = Known(
            clean=home.clean,
            recovery_point=home.known[names.RECOVERY_POINTS].get(key, 0),
            durable=home.durable(key),
            log_start=home.known[names.LOG_STARTS].get(key, 0),
        )
        try:
            log = load(path, parsed.topic, parsed.partition, topic_id, CONFIG, known, str)
        except PartitionDamaged as problem:
            damaged.append(f"{topic_id.hex()} {problem}")
            continue
        batches: dict[int, tuple[int, int]] = {}
        for base in segments_of(path):
            # A partition that no checkpoint knows yet may have a hole where two segments meet.
            end = sum(max(batches.items())[1:][0][:1], max(batches)) if batches else base
            if end != base and (known.durable or known.recovery_point):
                damaged.append(f"{topic_id.hex()} {path} has a hole before {base}")
            for batch in iterate_batches((path / names.segment_name(base)).read_bytes()):
                crc = int.from_bytes(batch.bytes[CRC_AT : CRC_AT + 4], "big")
                batches[batch.header.base_offset] = (batch.header.record_count, crc)
        found[topic_id.hex(), parsed.partition] = batches
        close(log)
    if home.journal is not None:
        home.journal.close()
    return found, damaged


def recovered_both(
    directory: Path,
) -> tuple[dict[Partition, dict[int, tuple[int, int]]], list[str]]:
    """Of two log directories, between which partitions were moving: each is in one of them."""
    there = [path for path in (directory / "data0", directory / "data1") if path.is_dir()]
    homes = [LogDir(number, path, group=True, failed=False) for number, path in enumerate(there)]
    for home in homes:
        home.take_over(str)
        if home.journal is not None:
            home.journal.close()
    futures.settle(homes)
    found: dict[Partition, dict[int, tuple[int, int]]] = {}
    damaged: list[str] = []
    for path in there:
        more, problems = recovered(path)
        assert not found.keys() & more.keys(), "a partition is in both"
        found |= more
        damaged += problems
    return found, damaged


Recover = Callable[[Path], tuple[dict[Partition, dict[int, tuple[int, int]]], list[str]]]


def check(run: Run, promises: Promises, directory: Path, recover: Recover = recovered) -> None:
    found, damaged = recover(directory)
    for problem in damaged:
        assert problem.split()[0] in promises.removed, problem
    for key, acked in promises.acked.items():
        if key[0] in promises.removed:
            continue
        batches = found.get(key, {})
        for offset, crc in acked.items():
            assert batches.get(offset, (0, 0))[1] == crc, f"{key}: what was acknowledged at {offset} is gone"
    for key, end in promises.visible.items():
        if key[0] in promises.removed:
            continue
        batches, next_offset = found.get(key, {}), 0
        while next_offset < end:
            assert next_offset in batches, f"{key}: readers were shown {next_offset}, below {end}"
            count, crc = batches[next_offset]
            assert run.offsets[key].get(next_offset, crc) == crc, f"{key}: {next_offset} is another one now"
            next_offset += count
    for key, batches in found.items():
        if key[0] not in promises.removed and key[0] != METADATA_ID:
            assert {crc for _, crc in batches.values()} <= promises.sent[key], f"{key}: never sent"


METADATA_ID = "00000000000000000000000000000001"


def cut_short(directory: Path, chance: random.Random, recover: Recover = recovered) -> None:
    """A start that is killed at one of its writes, syncs or changes of names."""
    left = [chance.randint(0, chance.choice((12, 60)))]

    def counted(real):  # type: ignore[no-untyped-def]
        def call(*arguments: object, **more: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os._exit(0)
            return real(*arguments, **more)

        return call

    pid = os.fork()
    if pid == 0:
        try:
            for name in ("pwrite", "write", "fsync", "fdatasync", "ftruncate", "unlink", "rename"):
                setattr(os, name, counted(getattr(os, name)))
            recover(directory)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", [(), ("several",), ("moving",)], ids=["one worker", "several", "moving"])
def test_nothing_acknowledged_or_shown_is_lost(
    seed: int, how: tuple[str, ...], tracer: Path, tmp_path: Path
) -> None:
    run = traced(tracer, tmp_path, seed, *how)
    recover = recovered_both if "moving" in how else recovered
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(len(run.events) + 1) for _ in range(CUTS))
    disk, promises = Disk(run.root), Promises()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for number, event in enumerate([*run.events, None]):
            for _ in range(bisect.bisect_right(cuts, number) - bisect.bisect_left(cuts, number)):
                for _ in range(IMAGES_PER_CUT):
                    directory = Path(name) / "data"
                    picture = chance.randrange(1 << 32)
                    write_image(disk.image(random.Random(picture)), directory)
                    if picture % 4 == 0:
                        cut_short(directory, random.Random(picture), recover)
                    try:
                        check(run, promises, directory, recover)
                    except Exception as problem:
                        problem.add_note(f"seed {seed}, power cut before event {number}, image {picture}")
                        raise
                    shutil.rmtree(directory)
            if event is not None:
                disk.take(number, event)
                if event.kind == MARK:
                    promises.take(*json.loads(event.data))
    assert sum(len(acked) for acked in promises.acked.values()) > 100
