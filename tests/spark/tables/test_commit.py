"""A table has each record of its topic once, whatever happens to the jobs that write it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from pyiceberg.table import DataScan, FileScanTask

from spark_integration.jobs.frame import JobError
from spark_integration.tables.commit import Batch, Overtaken, commit
from spark_integration.tables.spans import OFFSETS, Covered, Span, covered
from tests.support.fault_store import Fault, FaultStore
from tests.support.forms import each, pick
from tests.support.killing_store import Killed, KillingStore
from tests.support.table_world import TABLE, World

EVERY = pick("every request, number", short=5, long=1)
STEPS = pick("steps of a walk", short=12, long=40)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(monkeypatch)
    world.log.append(0, 3)
    world.log.append(1, 2, day=1)
    return world


def grown(world: World) -> World:
    world.life().run(once=True)
    world.log.append(0, 2)
    world.log.append(1, 1)
    return world


def restored(world: World) -> World:
    """The log went back, and on from there; some rows of the table are of records that nobody has."""
    world.life().run(once=True)
    world.log.restore([1, 2])
    world.log.append(0, 4)
    return world


@pytest.mark.parametrize("prepared", [World, grown, restored])
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_job_killed_at_any_request(world: World, prepared: Callable[..., World], is_applied: bool) -> None:
    if prepared is World:
        world.log.append(0, 1)
    else:
        prepared(world)
    objects = dict(world.memory.objects)
    at = int(is_applied)
    while True:
        world.memory.objects = dict(objects)
        store = KillingStore(world.memory, at, is_applied=is_applied)
        try:
            world.life(store).run(once=True)
        except Killed:
            world.life().run(once=True)
            assert world.rows() == world.log.rows(), f"killed at request {at}"
            at += EVERY
        else:
            break
    assert at > 8
    assert world.rows() == world.log.rows()


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST, Fault.LATE])
def test_a_commit_whose_outcome_is_unknown(world: World, fault: Fault) -> None:
    grown(world)
    store = FaultStore(world.memory)
    store.plan("create", fault)
    world.life(store).run(once=True)
    while store.deliver():
        pass
    assert world.rows() == world.log.rows()
    created = next(name for call, name in store.calls if call == "create")
    assert created.endswith("/v3.metadata.json")


def test_two_jobs(world: World) -> None:
    """The slower one wrote files for offsets that the table has by then: it plans again."""
    grown(world)
    first, second = world.life(), world.life()
    written = second._written

    def slow(*arguments: object) -> object:
        found = written(*arguments)  # type: ignore[arg-type]
        first.run(once=True)
        return found

    second._written = slow  # type: ignore[method-assign, assignment]
    second.run(once=True)
    assert world.rows() == world.log.rows()
    assert (first.done.commits, second.done.commits) == (1, 0)


def test_another_writer_in_between(world: World) -> None:
    """A snapshot without our property, such as a compaction's, is built on, and does not hide the offsets."""
    grown(world)
    before = world.covered()
    life = world.life()
    written = life._written

    def beside(*arguments: object) -> object:
        found = written(*arguments)  # type: ignore[arg-type]
        world.compact()
        return found

    life._written = beside  # type: ignore[method-assign, assignment]
    life.run(once=True)
    assert world.rows() == world.log.rows()
    assert world.covered().ends().keys() == before.ends().keys()


def test_offsets_survive_the_snapshots(world: World) -> None:
    """A snapshot of another writer is the only one left: the copy in the table's properties counts."""
    grown(world)
    world.compact()
    world.expire()
    (left,) = world.table().snapshots()
    assert left.summary is not None
    assert OFFSETS not in left.summary.additional_properties
    world.life().run(once=True)
    assert world.rows() == world.log.rows()


def test_a_restore_removes_what_the_log_has_lost(world: World) -> None:
    """And the same commit says so: nobody sees a table that has neither or both."""
    restored(world)
    life = world.life()
    life.run(once=True)
    assert life.done.commits == 1
    assert world.rows() == world.log.rows()
    assert [(span.partition, span.start, span.end, span.epoch) for span in world.covered().spans] == [
        (0, 0, 5, 1),
        (1, 0, 2, 0),
    ]


def test_a_restore_alone(world: World) -> None:
    world.life().run(once=True)
    world.log.restore([1, 0])
    world.life().run(once=True)
    assert world.rows() == world.log.rows()
    world.log.restore([0, 0])
    world.life().run(once=True)
    assert world.rows() == world.log.rows()
    assert world.covered().spans == ()


def test_commits_of_bounded_size(world: World) -> None:
    world.log.append(0, 50)
    life = world.life()
    life.run(once=True)
    assert world.rows() == world.log.rows()
    assert life.done.commits == 3


def test_spans_that_do_not_join_are_refused(world: World) -> None:
    world.life().run(once=True)
    table = world.table()
    before = covered(table)
    assert before is not None
    log = before.spans[0].key
    with pytest.raises(JobError, match=r"do not follow"):
        commit(world.table, Batch("run", 1, before, [Span(*log, 2, 4)]))
    with pytest.raises(Overtaken):
        commit(world.table, Batch("run", 1, Covered("orders"), [Span(*log, 0, 4)]))


def test_a_store_that_stays_away(world: World) -> None:
    grown(world)
    store = FaultStore(world.memory)
    life = world.life(store)
    store.plan("create", *[Fault.ERROR] * 100)
    with pytest.raises(JobError, match=rf"not up to date: {TABLE}: .*outcome is unknown"):
        life.run(once=True)
    world.life().run(once=True)
    assert world.rows() == world.log.rows()


def test_rows_that_others_delete_stay_deleted(world: World) -> None:
    world.life().run(once=True)
    world.table().delete("_timestamp < '1970-01-02T00:00:00+00:00'")
    before = world.covered()
    world.log.append(0, 2, day=1)
    world.life().run(once=True)
    assert world.rows() == Counter(
        {row: count for row, count in world.log.rows().items() if row[0] == 1 or row[1] >= 3}
    )
    assert world.covered().ends().keys() == before.ends().keys()


@each("seed", short=[1], long=range(1, 40))
def test_a_random_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills, faults, late requests, restores, compactions, expiry and days that pass, in any order."""
    chance = random.Random(seed)
    world = World(monkeypatch, partitions=3)
    stores: list[FaultStore] = []

    def restores() -> None:
        world.log.restore([chance.randint(0, len(records)) for records in world.log.records])

    def writes() -> None:
        odds = {Fault.ERROR: 0.03, Fault.LOST: 0.03, Fault.LATE: 0.03}
        stores.append(FaultStore(world.memory, chance, odds))
        life = world.life(KillingStore(stores[-1], chance.randint(0, 120), is_applied=chance.random() < 0.5))
        with suppress(Killed, JobError):
            life.run(once=True)

    def days_pass() -> None:
        # No request is days late.
        delivered()
        world.tidy()

    def delivered() -> None:
        for store in stores:
            while store.deliver():
                pass

    world.life().run(once=True)
    for _ in range(STEPS):
        world.log.append(chance.randrange(3), chance.randint(0, 8), day=chance.randint(0, 2))
        chance.choices([writes, world.compact, world.expire, days_pass, restores], [12, 2, 1, 2, 2])[0]()
        if stores and chance.random() < 0.3:
            chance.choice(stores).deliver()
        if chance.random() < 0.2:
            world.life().run(once=True)
            assert world.rows() == world.log.rows()
    delivered()
    world.life().run(once=True)
    assert world.rows() == world.log.rows()


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_restore_after_somebody_has_changed_a_column(world: World, is_renamed: bool) -> None:
    world.life().run(once=True)
    table = world.table()
    with table.update_schema(allow_incompatible_changes=True) as update:
        if is_renamed:
            update.rename_column("_headers", "headers")
        else:
            update.delete_column("_headers")
    before = covered(table)
    assert before is not None
    batch = Batch("run", 1, before, cut={before.spans[0].key: 1})
    found = commit(world.table, batch).scan().to_arrow()
    assert sorted(found["_offset"].to_pylist()) == [0, 0, 1]


def test_a_restore_does_not_bring_back_what_others_have_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.life().run(once=True)
    table, plan_files = world.table(), DataScan.plan_files
    before = covered(table)
    assert before is not None

    def with_deletes(scan: DataScan) -> Iterator[FileScanTask]:
        return (FileScanTask(one.file, {one.file}) for one in plan_files(scan))

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(JobError, match="rewrite_data_files"):
        commit(world.table, Batch("run", 1, before, cut={before.spans[0].key: 1}))
    assert covered(world.table()) == before
