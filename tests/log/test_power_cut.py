"""The power fails at any moment: what was acknowledged or shown to a reader is there at the next start.

A workload runs once under a tracer, then many power cuts are made of its trace, each with other sectors and
names lost, and recovered by the code that recovers. `CRASH_SEEDS=100-200` with pytest --long tries other
workloads.
"""

from __future__ import annotations

import bisect
import copy
import json
import os
import pickle
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crash_checks import (
    Partition,
    Promises,
    Recover,
    Run,
    Task,
    check,
    holes_in,
    note_offset,
    recovered,
    recovered_both,
    trace_of,
    traced,
)
from tests.support.crash_images import MARK, Disk, write_image
from tests.support.forms import each, long_only, pick

pytestmark = pytest.mark.process

FIRST, _, LAST = os.environ.get("CRASH_SEEDS", "1-20").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
OF_EACH_SEED = each("seed", short=[1], long=SEEDS)
# Of each workload.
CUTS = pick("power cuts of a workload", short=12, long=150)
IMAGES_PER_CUT = 2
# Of a workload so many power cuts are gone on from, and so many are made of each of these.
GONE_ON = 6
CUTS_AGAIN = 12
# Traces.
KEPT = 6
KINDS = pytest.mark.parametrize(
    "how", [(), ("several",), ("moving",)], ids=["one worker", "several", "moving"]
)
Traced = Callable[..., Run]


@pytest.fixture(scope="module")
def run_of(tracer: Path, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """A workload, run once for all tests."""
    done: dict[tuple[object, ...], Run] = {}

    def run(seed: int, *how: str) -> Run:
        if (seed, how) not in done:
            if len(done) == KEPT:
                done.clear()
            done[seed, how] = traced(tracer, tmp_path_factory.mktemp("run"), seed, *how)
        return done[seed, how]

    return run


def cut_short(directory: Path, chance: random.Random, recover: Recover = recovered) -> None:
    """A start that is killed at one of its writes, syncs or changes of names."""
    left = [chance.randint(0, chance.choice((12, 60)))]

    def counted(real):
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


def check_one(run: Run, promises: Promises, directory: Path, recover: Recover, what: str) -> None:
    try:
        check(run, promises, directory, recover)
    except Exception as problem:
        problem.add_note(what)
        raise
    shutil.rmtree(directory)


@KINDS
@OF_EACH_SEED
def test_nothing_acknowledged_or_shown_is_lost(seed: int, how: tuple[str, ...], run_of: Traced) -> None:
    run = run_of(seed, *how)
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
                    what = f"seed {seed}, power cut before event {number}, image {picture}"
                    check_one(run, promises, directory, recover, what)
            if event is not None:
                disk.take(number, event)
                if event.kind == MARK:
                    promises.take(*json.loads(event.data))
    assert sum(len(acked) for acked in promises.acked.values()) > 100


# ---- and it fails again in the starts behind that, or in what they go on with ----


def power_cuts(run: Run, chance: random.Random) -> list[tuple[Task, Promises]]:
    """Some of a workload, from its first batch on."""
    first = next(n for n, event in enumerate(run.events) if b'"sent"' in event.data and event.kind == MARK)
    cuts = sorted(chance.randrange(first, len(run.events)) for _ in range(GONE_ON))
    disk, promises, made = Disk(run.root), Promises(), []
    for number, event in enumerate(run.events):
        for _ in range(cuts.count(number)):
            task = Task(disk.image(chance), promises.topic, chance.randrange(1 << 32))
            made.append((task, copy.deepcopy(promises)))
        disk.take(number, event)
        if event.kind == MARK:
            promises.take(*json.loads(event.data))
    return made


def gone_on(
    run: Run, begun: int, ended: int, earlier: Run, promises: Promises, holes: dict[Partition, dict[int, int]]
) -> Run:
    """Return what is between these events, behind what earlier readers were shown."""
    part = Run(run.events[begun:ended], json.loads(run.events[begun].data)[2], defaultdict(dict), holes)
    for key, offsets in earlier.offsets.items():
        end = promises.visible.get(key, 0)
        part.offsets[key] = {offset: crc for offset, crc in offsets.items() if offset < end}
    for event in part.events:
        if event.kind == MARK:
            note_offset(part.offsets, *json.loads(event.data))
    return part


@KINDS
@OF_EACH_SEED
@long_only("power that fails again in the starts behind a power cut")
def test_nor_is_it_when_the_power_fails_again(
    seed: int, how: tuple[str, ...], run_of: Traced, tracer: Path, tmp_path: Path
) -> None:
    """Check it during a start, during the start after a killed one, or soon after."""
    run = run_of(seed, *how)
    recover = recovered_both if "moving" in how else recovered
    chance = random.Random(seed)
    made = power_cuts(run, chance)
    (tmp_path / "tasks").write_bytes(pickle.dumps([task for task, _ in made]))
    events = trace_of(tracer, tmp_path, "again", "tests.support.crash_again", *how)
    again = Run(events, (tmp_path / "again").stat().st_ino, {})
    begun = [n for n, event in enumerate(events) if event.kind == MARK and b'"begun"' in event.data]
    ended = [n for n, event in enumerate(events) if event.kind == MARK and b'"ended"' in event.data]
    assert len(begun) == len(ended) == GONE_ON
    disk = Disk(again.root)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        at = 0
        for number, (first, last, (task, promises)) in enumerate(zip(begun, ended, made, strict=True)):
            data = Path(name) / "data"
            write_image(task.image, data)
            part = gone_on(again, first, last, run, promises, holes_in(recover(data)[0], data))
            shutil.rmtree(data)
            cuts = sorted(chance.randrange(first + 1, last + 1) for _ in range(CUTS_AGAIN))
            for at in range(at, last + 1):  # noqa: B020 - each goes on where the last one ended
                for _ in range(cuts.count(at)):
                    picture = chance.randrange(1 << 32)
                    disk.root = part.root
                    write_image(disk.image(random.Random(picture)), Path(name) / "data")
                    what = f"seed {seed}, power cut {number}, again before event {at}, image {picture}"
                    check_one(part, promises, Path(name) / "data", recover, what)
                disk.take(at, events[at])
                if at > first and events[at].kind == MARK:
                    promises.take(*json.loads(events[at].data))
            at = last + 1
