"""One owner writes: what is lost, late or foreign changes neither order nor events."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mpbroker.remote.ledger import ledger as ledger_module
from mpbroker.remote.ledger.entries import LedgerDamaged, entry_name
from mpbroker.remote.ledger.events import LogStartMoved, SegmentsRemoved, Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import Owner, OwnerDamaged, OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import EventRefused
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.names import REMOTE_OWNER
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, ledger_of, opened_ledger, read, segment


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore())


@pytest.fixture
def ledger(store: FaultStore, tmp_path: Path) -> Ledger:
    made = ledger_of(store, tmp_path)
    made.start(STARTED)
    made.append([TOPIC])
    return made


def bases(store: FaultStore) -> list[int]:
    return [found.base for found in read(store.inner).state.segments_of(TOPIC_ID, 0)]


def test_a_new_ledger_begins_with_the_first_start(store: FaultStore, tmp_path: Path) -> None:
    ledger = opened_ledger(store, tmp_path)
    assert isinstance(store.inner, MemoryStore)
    assert list(store.inner.objects) == ["mpbroker/format", "mpbroker/log/00000000000000000001"]
    header = read(store.inner).last
    owner = msgspec.json.decode((tmp_path / REMOTE_OWNER).read_bytes(), type=Owner)
    assert header is not None
    assert (header.generation, header.owner, [header.start]) == (1, owner.nonce, owner.starts)
    assert (ledger.seq, owner.last_seq) == (1, 1)


def test_what_was_appended_is_there_for_all(ledger: Ledger, store: FaultStore, tmp_path: Path) -> None:
    ledger.append([segment(0), segment(10)])
    ledger.append([])
    ledger.append([segment(20)])
    assert ledger.seq == 4
    assert bases(store) == [0, 10, 20]
    again = ledger_of(store, tmp_path)
    again.start(STARTED)
    again.append([segment(30)])
    assert bases(store) == [0, 10, 20, 30]
    assert again.state.remote_segments(TOPIC_ID, 0).end == 40


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST, Fault.LATE])
def test_events_are_in_once_whatever_the_answer(ledger: Ledger, store: FaultStore, fault: Fault) -> None:
    store.plan("create", fault, fault)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    with pytest.raises(StoreError):
        ledger.append()
    # They are not given again; others come behind them.
    ledger.append([segment(10)])
    while store.deliver():
        pass
    assert bases(store) == [0, 10]
    assert ledger.seq == 4


def test_a_late_try_is_the_entry_that_was_tried(ledger: Ledger, store: FaultStore) -> None:
    """The bytes are fixed: what is asked for meanwhile comes in the next entry."""
    store.plan("create", Fault.LATE, Fault.ERROR)
    for event in (segment(0), segment(10)):
        with pytest.raises(StoreError):
            ledger.append([event])
    assert store.deliver()
    ledger.append()
    assert (read(store.inner).seq, bases(store)) == (4, [0, 10])


def test_the_state_has_only_what_is_in(ledger: Ledger, store: FaultStore) -> None:
    store.plan("create", Fault.LATE)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    assert ledger.state.segments_of(TOPIC_ID, 0) == ()
    ledger.append()
    assert [found.base for found in ledger.state.segments_of(TOPIC_ID, 0)] == [0]


def test_a_renewal_is_an_entry_without_events(ledger: Ledger, store: FaultStore) -> None:
    store.plan("create", Fault.LATE)
    with pytest.raises(StoreError):
        ledger.renew()
    assert store.deliver()
    ledger.append()
    assert (ledger.seq, read(store.inner).seq) == (3, 3)
    store.plan("create", Fault.ERROR)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    # What waits is as good.
    ledger.renew()
    assert (ledger.seq, bases(store)) == (4, [0])


def test_the_first_try_of_an_entry_is_the_one_that_counts(store: FaultStore, tmp_path: Path) -> None:
    ticks = iter(range(1, 100))
    ledger = Ledger(LedgerReader(store), OwnerFile(tmp_path), lambda: 0, lambda: next(ticks))
    store.plan("create", None, Fault.LOST)
    with pytest.raises(StoreError):
        ledger.start(STARTED)
    assert ledger.tried_ns == 0
    ledger.start(STARTED)
    assert ledger.tried_ns == 1
    store.plan("create", Fault.LATE, Fault.ERROR)
    for _ in range(2):
        with pytest.raises(StoreError):
            ledger.renew()
    assert (next(ticks), ledger.tried_ns) == (3, 1)
    ledger.append()
    assert ledger.tried_ns == 2


def test_an_event_that_contradicts_is_refused_and_writes_nothing(ledger: Ledger, store: FaultStore) -> None:
    ledger.append([segment(0)])
    store.plan("create", Fault.ERROR)
    with pytest.raises(StoreError):
        ledger.append([segment(10)])
    # Those that are kept count.
    for wrong in ([segment(10)], [segment(20), segment(5)], [SegmentsRemoved(TOPIC_ID, 0, (b"x" * 16,))]):
        with pytest.raises(EventRefused):
            ledger.append(wrong)
    ledger.append([segment(20)])
    assert bases(store) == [0, 10, 20]


def test_many_events_go_in_several_entries(
    ledger: Ledger, store: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "EVENTS_MAX", 3)
    store.plan("create", None, Fault.LOST)
    with pytest.raises(StoreError):
        ledger.append([segment(10 * at) for at in range(8)])
    ledger.append([segment(80)])
    assert bases(store) == [10 * at for at in range(9)]
    assert ledger.seq == 5


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST, Fault.LATE])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_start_goes_on_after_an_outage(store: FaultStore, tmp_path: Path, fault: Fault, calls: int) -> None:
    """The object that says whose prefix it is, the first entry, and each try again."""
    store.plan("create", *[fault] * calls)
    ledger = ledger_of(store, tmp_path)
    for _ in range(calls):
        with pytest.raises(StoreError):
            ledger.start(STARTED)
    ledger.start(STARTED)
    while store.deliver():
        pass
    ledger.append([TOPIC, segment(0)])
    assert bases(store) == [0]
    assert read(store.inner).seq == 2


@pytest.mark.parametrize("deaths", [1, 2])
def test_the_try_of_a_process_that_died_comes_before_its_successor(
    ledger: Ledger, store: FaultStore, tmp_path: Path, deaths: int
) -> None:
    """The late entry is by the same owner: its bytes are foreign, and yet no other broker's."""
    store.plan("create", *[Fault.LATE] * deaths)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    for _ in range(1, deaths):
        with pytest.raises(StoreError):
            ledger_of(store, tmp_path).start(STARTED)
    before_create(store, lambda: [store.deliver() for _ in range(deaths)])
    successor = ledger_of(store, tmp_path)
    successor.start(STARTED)
    successor.append([segment(10)])
    assert bases(store) == [0, 10]


def before_create(store: FaultStore, do: Callable[[], object]) -> None:
    """Do something after the next reader has come to the end, and before its entry is created."""
    real = store.inner.create

    def create(name: str, body: bytes) -> bool:
        store.inner.create = real  # type: ignore[method-assign]
        do()
        return real(name, body)

    store.inner.create = create  # type: ignore[method-assign]


def test_a_try_that_comes_after_the_successor_changes_nothing(
    ledger: Ledger, store: FaultStore, tmp_path: Path
) -> None:
    store.plan("create", Fault.LATE)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    successor = ledger_of(store, tmp_path)
    successor.start(STARTED)
    assert store.deliver()
    successor.append([segment(100)])
    assert bases(store) == [100]


def test_another_broker_writes_nothing(ledger: Ledger, store: FaultStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    foreign = ledger_of(store, other)
    with pytest.raises(Fenced, match=r"belongs to another broker: .*000002 is by owner"):
        foreign.start(STARTED)
    with pytest.raises(Fenced, match="the prefix belongs to the cluster cluster, this broker is of mine"):
        ledger_of(store, tmp_path).start(Started("mine", 1, "host"))
    assert read(store.inner).seq == ledger.seq
    ledger.append([segment(0)])


def test_two_that_find_an_empty_prefix(store: FaultStore, tmp_path: Path) -> None:
    """The first entry decides, and the other one finds it instead of its own."""
    other = tmp_path / "other"
    other.mkdir()
    first, second = ledger_of(store, tmp_path), ledger_of(store, other)
    store.create("mpbroker/format", b'{"format":1,"cluster_id":"cluster"}')
    before_create(store, lambda: before_create(store, lambda: second.start(STARTED)))
    with pytest.raises(Fenced, match="belongs to another broker"):
        first.start(STARTED)
    second.append([TOPIC])


def test_a_copied_disk_is_noticed(ledger: Ledger, store: FaultStore, tmp_path: Path) -> None:
    twin_directory = tmp_path / "twin"
    twin_directory.mkdir()
    shutil.copy(tmp_path / REMOTE_OWNER, twin_directory)
    twin = ledger_of(store, twin_directory)
    twin.start(STARTED)
    # The one that runs is stopped by its next entry, and by its next look; it says so from then on.
    with pytest.raises(Fenced, match="another broker has taken the ledger over"):
        ledger.check_fence()
    for events in ([], [segment(0)]):
        with pytest.raises(Fenced):
            ledger.append(events)
    assert "taken the ledger over" in str(ledger.fenced)
    # And when it starts again, since its disk knows nothing of the twin's start.
    with pytest.raises(Fenced, match=r"has a copy of this one's mpbroker\.remote\.owner"):
        ledger_of(store, tmp_path).start(STARTED)
    twin.append([segment(0)])
    assert bases(store) == [0]


def test_an_older_copy_of_the_disk_is_noticed(ledger: Ledger, store: FaultStore, tmp_path: Path) -> None:
    """A backup: its start is known to the ledger, what was written since is not known to it."""
    backup = tmp_path / "backup"
    backup.mkdir()
    for base in (0, 10):
        shutil.copy(tmp_path / REMOTE_OWNER, backup)
        ledger.append([segment(base)])
        with pytest.raises(Fenced, match=r"an older copy .* has entry \d, .*00\d is by owner"):
            ledger_of(store, backup).start(STARTED)
    # The newest copy goes on, also one that was taken while an entry was under way.
    for fault, base in ((Fault.LOST, 20), (Fault.ERROR, 30)):
        store.plan("create", fault)
        with pytest.raises(StoreError):
            ledger.append([segment(base)])
        ledger = ledger_of(store, tmp_path)
        ledger.start(STARTED)
    assert bases(store) == [0, 10, 20]


def test_an_entry_is_announced_on_disk_first(
    ledger: Ledger, store: FaultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full nothing is written, and nothing is lost."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.remote.ledger.owner.write_or_spare", full)
        for _ in range(2):
            store.calls.clear()
            with pytest.raises(StoreError, match=r"remote\.owner cannot be written: No space left"):
                ledger.append([segment(0)] if not ledger._queued else [])
            assert store.calls == []
        successor = ledger_of(store, tmp_path)
        with pytest.raises(OSError, match="No space left"):
            successor.start(STARTED)
        assert read(store.inner).seq == ledger.seq
    ledger.append()
    assert bases(store) == [0]


def test_a_foreign_entry_in_the_place_of_the_next_one(ledger: Ledger, store: FaultStore) -> None:
    assert store.inner.create(entry_name(ledger.seq + 1), b"of a later version")
    with pytest.raises(Fenced, match="000003 has no header"):
        ledger.append([segment(0)])


def test_looking_settles_what_is_under_way(ledger: Ledger, store: FaultStore) -> None:
    """Its own entry is no foreign one."""
    store.plan("create", Fault.LOST)
    with pytest.raises(StoreError):
        ledger.append([segment(0)])
    ledger.check_fence()
    assert bases(store) == [0]
    store.plan("get", Fault.ERROR)
    with pytest.raises(StoreError):
        ledger.check_fence()


def test_a_store_that_has_lost_entries_is_not_begun_anew(ledger: Ledger, tmp_path: Path) -> None:
    ledger.append([segment(0)])
    with pytest.raises(LedgerDamaged, match="ends with entry 0, this broker has written 2"):
        ledger_of(MemoryStore(), tmp_path).start(STARTED)


def test_entries_without_the_object_that_says_whose_they_are(store: FaultStore, tmp_path: Path) -> None:
    ledger_of(store, tmp_path).start(STARTED)
    store.inner.delete(["mpbroker/format"])
    with pytest.raises(LedgerDamaged, match=r"mpbroker/format is missing, mpbroker/log/0+1 is there"):
        ledger_of(store, tmp_path).start(STARTED)


def test_a_prefix_of_a_later_version_is_refused(store: FaultStore, tmp_path: Path) -> None:
    for body, why in ((b'{"format":2,"cluster_id":"cluster"}', "upgrade"), (b"{", "is damaged")):
        store.inner.put("mpbroker/format", [body], len(body))
        with pytest.raises(LedgerDamaged, match=why):
            ledger_of(store, tmp_path).start(STARTED)


def test_an_owner_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / REMOTE_OWNER).write_bytes(b'{"nonce":')
    with pytest.raises(OwnerDamaged, match=REMOTE_OWNER):
        OwnerFile(tmp_path)


def test_log_starts_never_go_back(ledger: Ledger) -> None:
    ledger.append([LogStartMoved(TOPIC_ID, 0, 5)])
    with pytest.raises(EventRefused):
        ledger.append([LogStartMoved(TOPIC_ID, 0, 4)])
    assert ledger.state.log_starts == {(TOPIC_ID, 0): 5}
