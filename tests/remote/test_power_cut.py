"""The power fails while uploads and cuts are under way, and the object store is a directory of the same disk.

Whatever it leaves: the store has all that the ledger names, and besides that only what the collector removes;
no record that was acknowledged is lost; the newest cut can be restored; and the broker may start again.
"""

from __future__ import annotations

import bisect
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.records.batch import CRC_AT
from mpbroker.records.iterate import iterate_batches
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.restore.files import finish, write_files
from mpbroker.remote.restore.plan import Plan, check_objects, make_plan, read_all
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.tier.collector import orphans
from mpbroker.remote.verification import verify
from mpbroker.storage.names import META_PROPERTIES
from tests.support.crash_checks import built_tracer, recovered, trace_of
from tests.support.crash_images import MARK, Disk, Event, write_image
from tests.support.forms import each, pick
from tests.support.ledger_parts import opened_ledger, read
from tests.support.log_rig import TOPIC_ID

pytestmark = [pytest.mark.process, pytest.mark.disk]

STEPS = pick("steps of a workload", short=30, long=150)
CUTS = pick("power cuts", short=6, long=300)
PROGRAM = "tests.support.tier_crash_workload"
# Of the acknowledged batches, or of those found: CRCs by partition and offset.
Batches = dict[tuple[int, int], int]


class Promised:
    """What was true when the power failed."""

    def __init__(self) -> None:
        self.acked: Batches = {}
        self.entry = 0
        # Where partitions ended in the newest cut that is surely there.
        self.ends = [0, 0]

    def take(self, what: str, *more: object) -> None:
        if what == "acked":
            _, partition, crc, offset = more
            self.acked[int(str(partition)), int(str(offset))] = int(str(crc))
        elif what == "entry":
            self.entry = int(str(more[0]))
        elif what == "cut":
            assert isinstance(more[0], list)
            self.ends = more[0]


@pytest.fixture(scope="module")
def tracer() -> Iterator[Path]:
    with built_tracer() as library:
        yield library


def of_segments(store: DirectoryStore, segments: list[SegmentAdded]) -> Batches:
    found: Batches = {}
    for one in segments:
        for batch in iterate_batches(store.get(one.objects.log)):
            crc = int.from_bytes(batch.bytes[CRC_AT : CRC_AT + 4], "big")
            found[one.partition, batch.header.base_offset] = crc
    return found


def of_directory(directory: Path) -> Batches:
    found, damaged = recovered(directory)
    assert damaged == []
    return {
        (partition, offset): crc
        for (topic, partition), batches in found.items()
        for offset, (_, crc) in batches.items()
        if topic == TOPIC_ID.hex()
    }


def missing(promised: Batches, found: Batches) -> Batches:
    return {key: crc for key, crc in promised.items() if found.get(key) != crc}


def restored(store: DirectoryStore, plan: Plan, directory: Path) -> Batches:
    directory.mkdir()
    write_files(store, plan, [directory], lambda _count: None)
    finish([directory])
    assert (directory / META_PROPERTIES).exists()
    remote = [one for segments in plan.segments.values() for one in segments]
    return of_segments(store, remote) | of_directory(directory)


def check_store(store: DirectoryStore) -> None:
    verified = verify(store, deep=True, progress=lambda _done, _whole: None)
    assert verified.problems == []


def check(promised: Promised, disk: Path) -> None:
    """Check what a power cut has left of the log directory and of the store."""
    store = DirectoryStore(disk / "store")
    check_store(store)
    state = read(store).state
    assert read(store).seq >= promised.entry
    # Nobody needs what the ledger does not name.
    store.delete([one.name for one in orphans(store, state)])
    check_store(store)
    segments = [one for some in state.segments.values() for one in some]
    there = of_segments(store, segments) | of_directory(disk / "data")
    assert missing(promised.acked, there) == {}
    if state.cuts:
        plan = make_plan(store)
        check_objects(store, plan)
        read_all(store, plan, lambda _count: None)
        of_cut = {key: crc for key, crc in promised.acked.items() if key[1] < promised.ends[key[0]]}
        assert missing(of_cut, restored(store, plan, disk / "restored")) == {}
    else:
        assert promised.ends == [0, 0]
    # The owner's file and the ledger agree: it is no other's ledger.
    opened_ledger(store, disk / "data").append([])


def pictures(events: list[Event], root: int, chance: random.Random) -> Iterator[tuple[str, Promised, Disk]]:
    """Yield the disk at random moments, and what was promised by then."""
    first = next(n for n, event in enumerate(events) if event.kind == MARK)
    cuts = sorted(chance.randrange(first, len(events) + 1) for _ in range(CUTS))
    disk, promised = Disk(root), Promised()
    for number in range(len(events) + 1):
        for _ in range(bisect.bisect_right(cuts, number) - bisect.bisect_left(cuts, number)):
            yield f"power cut before event {number}", promised, disk
        if number < len(events):
            disk.take(number, events[number])
            if events[number].kind == MARK:
                promised.take(*json.loads(events[number].data))


@each("seed", short=[1], long=range(1, 11))
def test_store_and_log_go_together_after_a_power_cut(seed: int, tracer: Path, tmp_path: Path) -> None:
    events = trace_of(tracer, tmp_path, "disk", PROGRAM, str(seed), str(STEPS))
    chance = random.Random(seed)
    promised = Promised()
    for what, promised, disk in pictures(events, (tmp_path / "disk").stat().st_ino, chance):
        picture = chance.randrange(1 << 32)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            write_image(disk.image(random.Random(picture)), Path(name) / "disk")
            try:
                check(promised, Path(name) / "disk")
            except Exception as problem:
                problem.add_note(f"seed {seed}, {what}, image {picture}")
                raise
    assert any(promised.ends)
    assert promised.entry > STEPS // 10
