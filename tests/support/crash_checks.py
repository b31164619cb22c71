"""For all that cuts the power in a trace: what was promised by then, and what a start finds of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log.directories import future_replica
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.partition.durable_reads import EACH_FILE, Syncs
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.records.batch import CRC_AT
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, marker_of
from mpbroker.storage import names
from mpbroker.storage.checkpoints import read_topic_id
from mpbroker.storage.segments import segments_of
from mpbroker.storage.transaction_index import AbortedTransaction, read_aborted
from tests.support.crash_images import MARK, Event, read_trace

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("native") / "trace.c"
CONFIG = resolve(BrokerConfig(), {})
HOLE = " has a hole before "
METADATA_ID = "00000000000000000000000000000001"

Partition = tuple[str, int]
# Of each partition its batches by base offset, as (count, CRC); and what was found to be damaged.
Found = tuple[dict[Partition, dict[int, tuple[int, int]]], list[str]]


@dataclass
class Promises:
    """What the workload had been told when the power failed."""

    sent: dict[Partition, set[int]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[Partition, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    visible: dict[Partition, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    # The one that is there.
    topic: str = ""

    def take(self, what: str, topic: str = "", *more: int) -> None:
        if what == "topic":
            self.topic = topic
        elif what == "removed":
            self.removed.add(topic)
            self.topic = ""
        elif what == "sent":
            self.sent[topic, more[0]].add(more[1])
        elif what == "acked":
            assert self.acked[topic, more[0]].setdefault(more[2], more[1]) == more[1], "acknowledged twice"
        elif what == "visible":
            # Each start begins to show what is there.
            self.visible[topic, more[0]] = max(more[1], self.visible.get((topic, more[0]), 0))


@dataclass
class Run:
    events: list[Event]
    root: int
    offsets: dict[Partition, dict[int, int]]  # every answered batch by its base offset, also later ones
    # Where it began with a hole, and where that ends: what was neither answered nor shown, before a segment
    # that is there, of a partition that no checkpoint knew.
    holes: dict[Partition, dict[int, int]] = field(default_factory=dict)


@dataclass
class Task:
    """Of `crash_again`: what a power cut has left is to be gone on with."""

    image: dict[str, bytes | None]
    topic: str  # its id in hexadecimal digits; "": there was none at that moment
    seed: int


@contextmanager
def built_tracer() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "trace.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        yield library


def traced(tracer: Path, directory: Path, seed: int, *how: str) -> Run:
    """Trace `crash_workload`. Leaves the trace in `directory`, which is its own."""
    events = trace_of(tracer, directory, "data0", "tests.support.crash_workload", str(seed), *how)
    offsets: dict[Partition, dict[int, int]] = defaultdict(dict)
    for event in events:
        if event.kind == MARK:
            note_offset(offsets, *json.loads(event.data))
    return Run(events, (directory / "data0").stat().st_ino, offsets)


def note_offset(offsets: dict[Partition, dict[int, int]], what: str, *more: int) -> None:
    """Take in what a mark says of a batch that was answered."""
    if what in ("acked", "appended"):
        topic, partition, crc, offset = more
        offsets[str(topic), partition][offset] = crc


def trace_of(tracer: Path, directory: Path, root: str, program: str, *how: str) -> list[Event]:
    """Return what that program does to `directory`/`root`; it is told of the directory first."""
    trace = directory / "trace"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_PRELOAD": str(tracer),
        "TRACE_ROOT": str(directory / root),
        "TRACE_FILE": str(trace),
    }
    command = [sys.executable, "-m", program, str(directory), *how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return read_trace(trace)


def recovered(
    directory: Path,
    close: Callable[[PartitionLog], None] = PartitionLog.close_files,
    syncs_of: Callable[[Path], Syncs] = lambda _: EACH_FILE,
) -> Found:
    """`syncs_of`: of a log directory."""
    syncs = syncs_of(directory)
    found: dict[Partition, dict[int, tuple[int, int]]] = {}
    damaged = []
    log_dir = LogDirectory(0, directory, group=True, failed=False)
    log_dir.take_over(str)
    assert log_dir.journal.file is None or list(log_dir.journal.file.records()) == []
    for path, parsed in list(log_dir.partitions()):
        topic_id = read_topic_id(path) if not parsed.suffix else None
        if topic_id is None:
            continue
        key = (parsed.topic, parsed.partition)
        known = Known(
            clean=log_dir.clean,
            recovery_point=log_dir.known[names.RECOVERY_POINTS].get(key, 0),
            durable=log_dir.durable(key),
            log_start=log_dir.known[names.LOG_STARTS].get(key, 0),
        )
        try:
            log = load(path, parsed.topic, parsed.partition, topic_id, CONFIG, known, str, syncs=syncs)
        except PartitionDamaged as problem:
            damaged.append(f"{topic_id.hex()} {problem}")
            continue
        batches: dict[int, tuple[int, int]] = {}
        for base in segments_of(path):
            # A partition that no checkpoint knows yet may have a hole where two segments meet.
            end = sum(max(batches.items())[1:][0][:1], max(batches)) if batches else base
            if end != base and (known.durable or known.recovery_point):
                damaged.append(f"{topic_id.hex()} {path}{HOLE}{base}")
            for batch in iterate_batches((path / names.segment_name(base)).read_bytes()):
                crc = int.from_bytes(batch.bytes[CRC_AT : CRC_AT + 4], "big")
                batches[batch.header.base_offset] = (batch.header.record_count, crc)
        found[topic_id.hex(), parsed.partition] = batches
        problem = wrong_aborted(path)
        if problem:
            damaged.append(f"{topic_id.hex()} {problem}")
        close(log)
    if log_dir.journal.file is not None:
        log_dir.journal.file.close()
    return found, damaged


def wrong_aborted(directory: Path) -> str:
    """Return where the indexes of aborted transactions contradict the batches."""
    open_from: dict[int, int] = {}
    for base in segments_of(directory):
        wanted = []
        for batch in iterate_batches((directory / names.segment_name(base)).read_bytes()):
            producer, offset = batch.header.producer_id, batch.header.base_offset
            if not batch.is_control:
                if batch.is_transactional:
                    open_from.setdefault(producer, offset)
                continue
            first, (kind, _) = open_from.pop(producer, None), marker_of(batch.bytes)
            if first is not None and kind == ABORT:
                stable = min(open_from.values(), default=offset + 1)
                wanted.append(AbortedTransaction(producer, first, offset, stable))
        path = directory / names.segment_name(base, names.TXN_INDEX_SUFFIX)
        said = read_aborted(path) if path.exists() else []
        if said != wanted:
            return f"{path} says {said}, not {wanted}"
    return ""


def recovered_both(directory: Path, syncs_of: Callable[[Path], Syncs] = lambda _: EACH_FILE) -> Found:
    """Recover two log directories between which partitions were moving, each of them in one at the end."""
    there = [path for path in (directory / "data0", directory / "data1") if path.is_dir()]
    log_dirs = [LogDirectory(number, path, group=True, failed=False) for number, path in enumerate(there)]
    for log_dir in log_dirs:
        log_dir.take_over(str)
        if log_dir.journal.file is not None:
            log_dir.journal.file.close()
    future_replica.settle(log_dirs)
    found: dict[Partition, dict[int, tuple[int, int]]] = {}
    damaged: list[str] = []
    for path in there:
        more, problems = recovered(path, syncs_of=syncs_of)
        assert not found.keys() & more.keys(), "a partition is in both"
        found |= more
        damaged += problems
    return found, damaged


Recover = Callable[[Path], Found]


def was_there(run: Run, problem: str) -> bool:
    """Return True if it is one of the holes with which the run began."""
    place, _, base = problem.partition(HOLE)
    key = place.partition(" ")[0], place.rpartition("-")[2]
    return bool(base) and int(base) in run.holes.get((key[0], int(key[1])), {}).values()


def holes_in(
    found: dict[Partition, dict[int, tuple[int, int]]], directory: Path
) -> dict[Partition, dict[int, int]]:
    """Return the holes in what was recovered, also those at the beginning of an empty last segment."""
    holes: dict[Partition, dict[int, int]] = defaultdict(dict)
    for metadata in directory.rglob(names.PARTITION_METADATA):
        topic_id, parsed = read_topic_id(metadata.parent), names.parse_partition(metadata.parent.name)
        if topic_id is None or parsed.suffix:
            continue
        key = (topic_id.hex(), parsed.partition)
        ends = [(base, (0, 0)) for base in segments_of(metadata.parent)[-1:]]
        next_offset = 0
        for base, (count, _) in [*sorted(found.get(key, {}).items()), *ends]:
            if base > next_offset:
                holes[key][next_offset] = base
            next_offset = max(next_offset, base + count)
    return holes


def check(run: Run, promises: Promises, directory: Path, recover: Recover = recovered) -> None:
    found, damaged = recover(directory)
    for problem in damaged:
        assert problem.split()[0] in promises.removed or was_there(run, problem), problem
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
            if next_offset not in batches and next_offset in run.holes.get(key, {}):
                next_offset = run.holes[key][next_offset]
                continue
            assert next_offset in batches, f"{key}: readers were shown {next_offset}, below {end}"
            count, crc = batches[next_offset]
            assert run.offsets[key].get(next_offset, crc) == crc, f"{key}: {next_offset} is another one now"
            next_offset += count
    for key, batches in found.items():
        if key[0] not in promises.removed and key[0] != METADATA_ID:
            assert {crc for _, crc in batches.values()} <= promises.sent[key], f"{key}: never sent"
