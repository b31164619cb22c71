"""The owner's lease: from the first try to name a standby until the last is gone, and at a foreign entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import force_setattr, replace

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.ipc.nodes import NODES_FILE, Nodes
from mpbroker.ipc.process import EXIT_STANDBY, EXIT_TAKEN_OVER, FatalError
from mpbroker.ipc.replaced_files import read_json
from mpbroker.remote.ledger.events import Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile, read_owner
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import STANDBYS, Registration, register, registration_name
from mpbroker.remote.tier import leadership, tier_store
from mpbroker.storage.names import REMOTE_OWNER
from tests.support.fault_store import Fault
from tests.support.ledger_parts import read
from tests.support.standing_by import STANDBY, faults, serve_reads, stand_by, take_over
from tests.support.tier_world import CLUSTER, TierWorld

SECOND_NS = 1_000_000_000
# Of the lease, but for the margin; and the time between two entries.
VALID_NS, DUE_NS = 27 * SECOND_NS, 10 * SECOND_NS


@pytest.fixture
def alone(world: TierWorld) -> TierWorld:
    """A broker that leads, whose ledger names nobody."""
    world.turn()
    return world


@pytest.fixture
def led(alone: TierWorld) -> TierWorld:
    """A broker that leads, and one that stands by."""
    stand_by(alone)
    return alone


def word(world: TierWorld) -> int:
    return world.rig.memory.leading().until_ns


def owners(world: TierWorld) -> list[int]:
    owner = read_owner(world.rig.directory)
    assert owner is not None
    return owner.standbys


def named(world: TierWorld) -> list[int]:
    return list(read(world.memory_store).state.standbys)


def nodes(world: TierWorld) -> list[int]:
    found = read_json(world.rig.directory / NODES_FILE, Nodes)
    return [] if found is None else [one.id for one in found.nodes]


@pytest.mark.parametrize("fault", [None, Fault.ERROR, Fault.LOST])
def test_a_listener_that_is_added_is_told_to_clients_and_to_standbys(
    led: TierWorld, fault: Fault | None
) -> None:
    config = led.writer._config
    added = replace(config.listeners[0], name="ADDED", host="example.org", port=9999)
    # As a process adopts settings.
    force_setattr(config, "listeners", (*config.listeners, added))
    faults(led).plan("create", fault)
    for _ in range(2):
        led.renewing.look()
    found = read_json(led.rig.directory / NODES_FILE, Nodes)
    leader = read(led.memory_store).state.leader
    assert found is not None
    assert leader is not None
    assert found.nodes[0].listeners == leader.listeners
    assert leader.listeners["ADDED"] == ("example.org", 9999)
    assert named(led) == [STANDBY]
    before = read(led.memory_store).seq
    led.renewing.look()
    assert read(led.memory_store).seq == before


def test_without_a_standby_a_broker_leads_always_and_writes_nothing_for_it(alone: TierWorld) -> None:
    before = read(alone.memory_store).seq
    alone.now_ns += 3600 * SECOND_NS
    alone.renewing.turn()
    alone.renewing.look()
    assert (word(alone), read(alone.memory_store).seq, nodes(alone)) == (ALWAYS, before, [])


def test_a_standby_is_named_and_the_broker_leads_while_its_lease_lasts(led: TierWorld) -> None:
    assert (owners(led), named(led), nodes(led)) == ([STANDBY], [STANDBY], [1, STANDBY])
    assert word(led) == led.now_ns + VALID_NS
    assert led.count(Counter.COUNT_REMOTE_STANDBYS) == 1
    assert led.count(Counter.COUNT_REMOTE_LEASE_UNTIL_MS) == word(led) // 1_000_000
    before = read(led.memory_store).seq
    led.now_ns += DUE_NS - 1
    led.renewing.turn()
    assert read(led.memory_store).seq == before
    led.now_ns += 1
    led.renewing.turn()
    assert read(led.memory_store).seq == before + 1
    assert word(led) == led.now_ns + VALID_NS


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST])
def test_the_lease_begins_before_the_first_try_to_name_a_standby(alone: TierWorld, fault: Fault) -> None:
    began = alone.now_ns
    faults(alone).plan("create", fault)
    stand_by(alone)
    assert (owners(alone), word(alone)) == ([STANDBY], began + VALID_NS)
    alone.now_ns += SECOND_NS
    alone.renewing.look()
    # The first try may have been the one.
    assert (named(alone), word(alone)) == ([STANDBY], began + VALID_NS)


def test_a_kill_between_the_owners_file_and_the_ledger_leaves_a_lease_until_a_successor_begins(
    alone: TierWorld,
) -> None:
    faults(alone).plan("create", Fault.ERROR)
    stand_by(alone)
    alone.again()
    assert word(alone) == alone.now_ns + VALID_NS
    alone.writer.begin()
    assert (owners(alone), named(alone), word(alone)) == ([], [], ALWAYS)


def test_a_renewal_counts_from_its_first_try(led: TierWorld) -> None:
    led.now_ns += DUE_NS
    tried = led.now_ns
    faults(led).plan("create", Fault.ERROR)
    led.renewing.turn()
    led.now_ns += 5 * SECOND_NS
    led.renewing.turn()
    assert word(led) == tried + VALID_NS


def test_an_outage_ends_the_lease_and_the_next_entry_begins_it_again(
    led: TierWorld, caplog: pytest.LogCaptureFixture
) -> None:
    until = word(led)
    faults(led).is_down = True
    for _ in range(4):
        led.now_ns += DUE_NS
        led.renewing.turn()
    assert word(led) == until < led.now_ns
    assert [one.getMessage()[:31] for one in caplog.records] == ["the lease cannot be renewed: mpb"[:31]]
    faults(led).is_down = False
    # The entry that waited was first tried long ago.
    led.renewing.turn()
    led.renewing.turn()
    assert word(led) == led.now_ns + VALID_NS


def test_a_standby_whose_object_is_deleted_is_gone_and_the_broker_leads_always(led: TierWorld) -> None:
    led.memory_store.delete([registration_name(STANDBY)])
    faults(led).plan("create", Fault.ERROR)
    led.renewing.look()
    # Until the ledger says so the standby may still take over.
    assert (owners(led), word(led) == ALWAYS, nodes(led)) == ([STANDBY], False, [1, STANDBY])
    led.renewing.look()
    assert (owners(led), named(led), nodes(led), word(led)) == ([], [], [], ALWAYS)


def test_a_standby_that_is_silent_for_a_day_is_gone_with_its_object(led: TierWorld) -> None:
    led.now_ns += leadership.SILENT_NS - 1
    led.renewing.look()
    stand_by(led, beat=2)
    led.now_ns += leadership.SILENT_NS - 1
    led.renewing.look()
    assert named(led) == [STANDBY]
    led.now_ns += 1
    led.renewing.look()
    assert (named(led), list(led.memory_store.list(STANDBYS))) == ([], [])


def test_two_may_stand_by_and_none_for_itself(led: TierWorld) -> None:
    stand_by(led, 3)
    stand_by(led, 1)
    assert (owners(led), named(led), nodes(led)) == ([2, 3], [2, 3], [1, 2, 3])
    led.memory_store.delete([registration_name(2)])
    led.renewing.look()
    assert (owners(led), named(led), word(led)) == ([3], [3], led.now_ns + VALID_NS)


def test_a_standby_with_another_address_is_named_again(led: TierWorld) -> None:
    moved = Registration(STANDBY, "elsewhere", "", {"PLAINTEXT": ("elsewhere", 9092)}, 0, 2)
    register(led.memory_store, moved)
    led.renewing.look()
    assert read(led.memory_store).state.standbys[STANDBY].host == "elsewhere"
    found = read_json(led.rig.directory / NODES_FILE, Nodes)
    assert found is not None
    assert found.nodes[1].listeners == {"PLAINTEXT": ("elsewhere", 9092)}


def test_a_successor_of_the_tier_leaves_the_lease_as_it_is_until_its_own_entry(led: TierWorld) -> None:
    until = word(led)
    led.now_ns += 20 * SECOND_NS
    led.again()
    assert word(led) == until
    led.writer.begin()
    assert (word(led), owners(led), nodes(led)) == (led.now_ns + VALID_NS, [STANDBY], [1, STANDBY])


@pytest.mark.parametrize("has_standby", [False, True])
def test_a_start_in_an_outage_tries_often_if_clients_wait_for_it(
    alone: TierWorld, has_standby: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_standby:
        stand_by(alone)
    alone.again()
    faults(alone).is_down = True
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise tier_store.Stopped

    monkeypatch.setattr(alone.tier, "wait", wait)
    alone.writer.run()
    assert waits == ([1, 1, 1, 1] if has_standby else [1, 2, 4, 8])


# ---- another owner


@pytest.mark.parametrize(
    ("broker_id", "status", "said"),
    [(STANDBY, EXIT_STANDBY, "becomes its standby"), (1, EXIT_TAKEN_OVER, "restored from the object store")],
)
@pytest.mark.parametrize("has_lease", [False, True])
def test_who_is_replaced_leads_no_more_and_ends(
    alone: TierWorld, broker_id: int, status: int, said: str, has_lease: bool
) -> None:
    if has_lease:
        stand_by(alone)
    take_over(alone, broker_id)
    assert alone.tier.book is not None
    with pytest.raises(Fenced):
        alone.tier.book.renew()
    assert word(alone) == NEVER
    # Whichever thread has found it: this one ends the process.
    with pytest.raises(FatalError, match=said) as caught:
        alone.renewing.turn()
    assert caught.value.status == status
    # And so does each later start.
    alone.again()
    with pytest.raises(FatalError, match=said) as caught:
        alone.writer.run()
    assert (caught.value.status, word(alone)) == (status, NEVER)
    # Or a start with acks=ledger, which waits for this process, would end by another status.
    assert alone.count(Counter.COUNT_REMOTE_FENCED) == 0


def test_a_start_that_finds_a_later_start_of_another_owner_ends(led: TierWorld, tmp_path: Path) -> None:
    take_over(led, STANDBY)
    other = OwnerFile(tmp_path)
    other.owner.nonce, other.owner.generation = "other", 2
    other.owner.starts, other.owner.last_seq = ["start"], read(led.memory_store).seq
    Ledger(LedgerReader(led.memory_store), other).start(Started(CLUSTER, STANDBY, "there"))
    led.again()
    with pytest.raises(FatalError, match=f"broker {STANDBY} on there has taken over"):
        led.writer.run()


@pytest.mark.parametrize("has_lease", [False, True])
def test_a_copy_of_the_disk_ends_the_lease_and_no_broker_without_one(
    alone: TierWorld, tmp_path: Path, has_lease: bool
) -> None:
    if has_lease:
        stand_by(alone)
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / REMOTE_OWNER).write_bytes((alone.rig.directory / REMOTE_OWNER).read_bytes())
    Ledger(LedgerReader(alone.memory_store), OwnerFile(twin)).start(Started(CLUSTER, 1, "copy"))
    assert alone.tier.book is not None
    with pytest.raises(Fenced):
        alone.tier.book.renew()
    alone.renewing.turn()
    assert word(alone) == (NEVER if has_lease else ALWAYS)


# ---- without a ledger


@pytest.mark.parametrize("has_standby", [False, True])
def test_a_damaged_owners_file_keeps_nobody_from_reading_and_leads_if_nobody_stands_by(
    alone: TierWorld, has_standby: bool
) -> None:
    if has_standby:
        stand_by(alone)
    (alone.rig.directory / REMOTE_OWNER).write_bytes(b"{")
    alone.rig.memory.leading().until_ns = NEVER
    alone.again()
    alone.writer.run()
    assert alone.tier.state is not None
    assert len(alone.tier.state.segments) == 1
    assert word(alone) == (NEVER if has_standby else ALWAYS)


def test_replicas_are_told_to_clients_and_neither_ledger_nor_lease_knows_of_them(alone: TierWorld) -> None:
    readable, lease_ns, before = (
        alone.rig.memory.words("readable"),
        30 * SECOND_NS,
        read(alone.memory_store).seq,
    )
    serve_reads(alone, 5, 1, 1, 700)
    serve_reads(alone, 6, 1, 1, 600)
    assert (nodes(alone), readable.load(0)) == ([1, 5, 6], 600)
    found = read_json(alone.rig.directory / NODES_FILE, Nodes)
    assert found is not None
    assert [(one.rack, one.is_replica) for one in found.nodes] == [("", False), ("a", True), ("a", True)]
    assert (word(alone), owners(alone), named(alone)) == (ALWAYS, [], [])
    assert read(alone.memory_store).seq == before
    # One that is silent for a lease is gone. What another owner has told one does not count.
    alone.now_ns += lease_ns - 1
    serve_reads(alone, 5, 2, 1, 800)
    assert (nodes(alone), readable.load(0)) == ([1, 5, 6], 600)
    alone.now_ns += 1
    serve_reads(alone, 5, 3, 2, 900)
    assert (nodes(alone), readable.load(0)) == ([1, 5], 0)
    serve_reads(alone, 5, 4, 1, 900)
    assert readable.load(0) == 900
    alone.now_ns += lease_ns
    alone.renewing.look()
    assert (nodes(alone), readable.load(0)) == ([], 0)
