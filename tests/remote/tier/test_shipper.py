"""Commit rounds on their way into the ledger: whole and in order, whatever the store or a kill does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.unshipped import round_number
from mpbroker.remote.cuts.manifest import SHIPPED, parse_cut_object
from mpbroker.remote.ledger.events import CutTaken, Shipped
from mpbroker.remote.ledger.reader import LedgerReader, read_entries
from mpbroker.remote.restore.shipped import ShippedFiles
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier import shipper as module
from mpbroker.remote.tier.ranges import Ranges
from mpbroker.remote.tier.shipper import Shipper
from mpbroker.storage.names import LOG_SUFFIX
from tests.support.fault_store import Fault, FaultStore
from tests.support.log_rig import TOPIC_ID, end
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import settle
from tests.support.tier_world import BATCH, MakeWorld, TierWorld

LEDGER = {"mpbroker_remote_acks": "ledger"}


class Shipping:
    """A log process, and a shipper that the test steps."""

    def __init__(self, world: TierWorld) -> None:
        self.world = world
        self.rung = 0
        world.turn()
        self.again()

    def again(self) -> None:
        """Let the tier be dead and have a successor."""
        memory, config = self.world.rig.memory, self.world.rig.config
        self.shipper = Shipper(
            self.world.tier,
            Ranges(memory.table(), config.log_dirs),
            [memory.unshipped_block(0)],
            memory.words("shipped"),
            memory.words("first_cut"),
            self._told,
            self.world.context.counters,
        )

    def _told(self, worker: int) -> None:
        assert worker == 0
        self.rung += 1

    def produce(self, *batches: bytes, partition: int = 0) -> None:
        """Produce, until a round waits."""
        broker = self.world.broker
        self.world.rig.job([(broker.targets[partition], batch) for batch in batches])
        until(lambda: broker.process.turn.awaits_tier, "a round waits", lambda: broker.process.work(5))

    def ship(self) -> None:
        while not self.world.broker.process.turn.is_settled:
            self.shipper.turn()
            self.world.broker.process.work(5)

    def events(self) -> list[Shipped]:
        reader = LedgerReader(self.world.memory_store)
        reader.read_to_end()
        entries = read_entries(self.world.memory_store, 1, reader.seq)
        return [event for entry in entries for event in entry.events if isinstance(event, Shipped)]

    def applied(self, root: Path) -> dict[str, bytes]:
        """Return the segments of a disk that has nothing but what was shipped."""
        root.mkdir()
        files = ShippedFiles(self.world.memory_store, [root])
        for event in self.events():
            files.apply(event)
        files.finish()
        return segments_of(root)


def segments_of(root: Path) -> dict[str, bytes]:
    return {str(one.relative_to(root)): one.read_bytes() for one in root.glob(f"*/*{LOG_SUFFIX}")}


@pytest.fixture
def shipping(worlds: MakeWorld) -> Shipping:
    return Shipping(worlds(2, **LEDGER))


def test_a_round_goes_into_one_entry_and_the_worker_is_told(shipping: Shipping) -> None:
    shipping.produce(make_batch(3))
    assert shipping.shipper.turn()
    assert not shipping.shipper.turn()
    assert shipping.rung == 1
    settle(shipping.world.broker.process)
    assert [reply.results[0].error for reply in shipping.world.rig.replies()] == [0]
    (event,) = shipping.events()
    (one,) = event.ranges
    data = (shipping.world.directory() / "00000000000000000000.log").read_bytes()
    assert (one.directory, one.topic_id, one.end) == ("0/t-0", TOPIC_ID, (3, 0, len(data)))
    assert (event.number, event.data) == (1, data)


@pytest.mark.parametrize("object_bytes", [module.OBJECT_BYTES, 300_000])
def test_an_empty_disk_becomes_what_was_shipped(
    shipping: Shipping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_bytes: int
) -> None:
    """Check it with large and small rounds, over segments, and with objects that are divided."""
    monkeypatch.setattr(module, "OBJECT_BYTES", object_bytes)
    chance = random.Random(object_bytes)
    for _ in range(20):
        some = [BATCH if chance.random() < 0.3 else make_batch(2)] * chance.randint(1, 2)
        shipping.produce(*some, partition=chance.randrange(2))
        if chance.random() < 0.7:
            shipping.ship()
    shipping.ship()
    assert any(event.object_id for event in shipping.events())
    own = {
        path: data
        for path, data in segments_of(shipping.world.rig.directory).items()
        if path.startswith("t-")
    }
    assert len(own) > 4
    assert shipping.applied(tmp_path / "empty") == own


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST, Fault.LATE])
def test_nobody_is_told_before_the_ledger_has_it(shipping: Shipping, fault: Fault) -> None:
    store = shipping.world.store
    assert isinstance(store, FaultStore)
    shipping.produce(make_batch(3))
    store.plan("create", fault)
    with pytest.raises(StoreError):
        shipping.shipper.turn()
    shipping.world.broker.process.work(0)
    assert shipping.world.rig.replies() == []
    assert shipping.rung == 0
    store.deliver()
    shipping.shipper._outage.failed(StoreError("away"))
    assert shipping.world.count(Counter.COUNT_REMOTE_DOWN_SINCE_MS) > 0
    assert shipping.shipper.turn()
    assert shipping.world.count(Counter.COUNT_REMOTE_DOWN_SINCE_MS) == 0
    assert [event.number for event in shipping.events()] == [1]
    shipping.ship()


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_store_that_fails_is_not_given_the_same_bytes_again(
    shipping: Shipping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_changed: bool
) -> None:
    """Check it with a round of two objects; both are put again where its files have changed meanwhile."""
    monkeypatch.setattr(module, "OBJECT_BYTES", len(BATCH))
    store = shipping.world.store
    assert isinstance(store, FaultStore)
    shipping.produce(BATCH)
    shipping.ship()
    shipping.produce(make_batch(1))
    shipping.produce(BATCH, BATCH)
    shipping.world.broker.process.work(0)
    shipping.shipper.turn()
    process = shipping.world.broker.process
    until(lambda: shipping.shipper._read() != {}, "the next round waits", lambda: process.work(5))
    before = sum(operation == "put" for operation, _ in store.calls)
    store.plan("put", None, Fault.ERROR, Fault.ERROR)
    for _ in range(2):
        with pytest.raises(StoreError):
            shipping.shipper.turn()
    made = shipping.shipper.objects()
    assert made <= {parse_cut_object(name) for name in shipping.world.memory_store.objects}
    if is_changed:
        assert shipping.shipper._sending is not None
        next(iter(shipping.shipper._sending.rounds.values())).clear()
    shipping.ship()
    tries = [name for operation, name in store.calls if operation == "put"][before:]
    assert len(tries) == (5 if is_changed else 4)
    assert made
    assert made.isdisjoint(one.object_id for one in shipping.events()) == is_changed
    assert shipping.shipper.objects() == set()
    own = segments_of(shipping.world.rig.directory)
    assert shipping.applied(tmp_path / "empty") == {path: own[path] for path in own if path[:3] == "t-0"}


def test_a_tier_that_dies_leaves_a_round_that_is_shipped_again(shipping: Shipping, tmp_path: Path) -> None:
    """Check that it does no harm if the ledger has the round already."""
    shipping.produce(make_batch(3))
    memory = shipping.world.rig.memory
    before = memory.words("shipped").load(0)
    shipping.shipper.turn()
    # It was killed before the word.
    memory.words("shipped").store(0, before)
    shipping.world.again()
    shipping.world.turn()
    shipping.again()
    shipping.ship()
    shipping.produce(make_batch(1))
    shipping.ship()
    assert [event.number for event in shipping.events()] == [1, 2, 3]
    name = "t-0/00000000000000000000.log"
    whole = (shipping.world.rig.directory / name).read_bytes()
    assert shipping.applied(tmp_path / "empty") == {name: whole}


def test_a_round_of_a_topic_that_is_deleted_is_over(shipping: Shipping) -> None:
    shipping.produce(make_batch(3))
    process = shipping.world.broker.process
    shipping.world.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    until(
        lambda: process.turn.is_settled and not process.topics,
        "the topic is removed",
        lambda: (process.work(5), process.topics.advance(), shipping.shipper.turn()),
    )
    assert [event.ranges for event in shipping.events()] in ([], [()])


def test_a_cut_counts_what_was_read_before_it(shipping: Shipping) -> None:
    book = shipping.world.tier.book
    assert book is not None
    assert shipping.shipper.mark() == (0, book.ledger.seq)
    shipping.produce(make_batch(3))
    assert shipping.shipper.has_news
    shipping.shipper.follow()
    assert not shipping.shipper.has_news
    # The files have the round, and the mark does not say so: applying it again changes nothing.
    assert shipping.shipper.mark() == (0, book.ledger.seq)
    shipping.ship()
    assert shipping.shipper.mark() == (1, book.ledger.seq)
    assert [name for name in shipping.world.memory_store.objects if name.startswith(SHIPPED)] == []


def test_what_a_cut_counts_is_no_later_rounds_number(shipping: Shipping) -> None:
    """Check it where a tier dies that was to bring more than one object into the store."""
    book = shipping.world.tier.book
    assert book is not None
    # It has brought the first object, and read the second one when the cut was made.
    shipping.shipper.number = 2
    shipped, since = shipping.shipper.mark()
    book.add([CutTaken(b"c" * 16, 0, 0, "", since, (), (), shipped, since)])
    book.commit()
    shipping.again()
    assert shipping.shipper.mark()[0] == shipped
    shipping.produce(make_batch(3))
    shipping.ship()
    assert [event.number for event in shipping.events()] == [shipped + 1]


def test_a_log_directory_without_the_partition_is_asked_again(shipping: Shipping) -> None:
    shipping.produce(make_batch(3))
    directory = shipping.world.directory()
    directory.rename(directory.with_name("away"))
    with pytest.raises(OSError, match="has no directory"):
        shipping.shipper.turn()
    assert round_number(shipping.world.rig.memory.unshipped_block(0))
    directory.with_name("away").rename(directory)
    shipping.ship()
    assert shipping.rung == 1
    end(shipping.world.broker.process)


def test_a_round_that_is_shown_after_the_instant_of_a_cut_has_a_later_number(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it for a cut that is taken when the shipper is about to look: the cut does not have the round."""
    marks: list[tuple[int, int]] = []
    read = shipping.shipper._read

    def late() -> object:
        if not marks:
            marks.append(shipping.shipper.mark())
            shipping.produce(make_batch(3))
        return read()

    monkeypatch.setattr(shipping.shipper, "_read", late)
    assert shipping.shipper.turn()
    ((number, since),) = marks
    (event,) = shipping.events()
    assert event.number > number
    reader = LedgerReader(shipping.world.memory_store)
    reader.read_to_end()
    assert reader.seq > since
    shipping.ship()
