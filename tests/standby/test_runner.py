"""A standby takes over, killed or not; whatever its log directories have had, nothing of it is lost."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch, encode_record
from mpbroker.ipc.mirror import MIRROR_FILE, MirrorPointer
from mpbroker.ipc.nodes import NODES_FILE, Node, Nodes
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.replaced_files import read_json
from mpbroker.protocol.messages import ProducerIdsRecord
from mpbroker.records.iterate import iterate_batches
from mpbroker.remote.ledger import owner
from mpbroker.remote.ledger.claim import Claim, ClaimFile, new_claim, settle
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import Released, StandbySet, Started, TakenOver
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import read_registrations
from mpbroker.remote.restore import files
from mpbroker.remote.restore.mirror import Mirror, unfinished
from mpbroker.remote.restore.producer_ids import JUMP
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.standby import directories, face, runner, take_over, waiting
from mpbroker.standby.follower import Follower
from mpbroker.standby.runner import Runner
from mpbroker.standby.take_over import renew
from mpbroker.standby.waiting import Stopped
from mpbroker.storage.checkpoints import read_epochs, text_of_id, write_epochs
from mpbroker.storage.directory_layout import read_properties
from mpbroker.storage.names import FENCED, META_PROPERTIES, REMOTE_CLAIM, REMOTE_OWNER, REPLICA, STANDBY_FACE
from mpbroker.supervisor.notify import Notifier
from tests.support.cut_world import CutWorld, contents
from tests.support.full_disk import failing_with
from tests.support.killing_store import Killed
from tests.support.ledger_parts import TOPIC_ID, ledger_of, read

METADATA = f"__cluster_metadata-0/{0:020d}.log"
OWN = 2


class World:
    """An owner in a directory store, which has handed over to the standby on two log directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "store").mkdir()
        self.store = DirectoryStore(root / "store")
        self.owner = CutWorld(root, directories=2, store=self.store)
        self.log_dirs = [root / f"standby{number}" for number in range(2)]
        first, second = self.owner.log_dirs
        batch = build_metadata_batch([encode_record(ProducerIdsRecord(broker_id=1, next_producer_id=7))], 5)
        for name, data in (
            (first / METADATA, bytes(batch)),
            (second / f"t-0/{0:020d}.log", b"records"),
            (second / "t-0/partition.metadata", text_of_id(TOPIC_ID)),
        ):
            name.parent.mkdir(exist_ok=True)
            name.write_bytes(data)
        write_epochs(second / "t-0", [(3, 0)])
        self.owner.open("1/t-0", TOPIC_ID)
        self.owner.cut()

    def hand_over(self) -> None:
        self.owner.ledger.append([StandbySet(OWN, "host", "", {})])
        self.owner.ledger.append([Released()])

    def runner(
        self,
        log_dirs: list[Path] | None = None,
        node_id: int = OWN,
        *,
        read_only: bool = False,
        **options: Any,
    ) -> Runner:
        config = BrokerConfig(
            log_dirs=tuple(map(str, log_dirs or self.log_dirs)),
            node_id=node_id,
            remote_log_storage_system_enable=True,
            mpbroker_remote_url=f"file://{self.root / 'store'}",
            mpbroker_remote_lease_ms=1_000,
            **options,
        )
        return Runner(config, ["serve"], Notifier(), read_only=read_only)

    def check_taken_over(self) -> None:
        """Check that the standby's directories are the owner's, as one take-over makes them."""
        reader = read(self.store)
        assert reader.generation == 2
        assert [(read_properties(one) or {})["node.id"] for one in self.log_dirs] == [str(OWN)] * 2
        assert read_epochs(self.log_dirs[1] / "t-0")[:-1] == [(3, 0)]
        assert read_epochs(self.log_dirs[1] / "t-0")[-1][0] == 4
        batches = list(iterate_batches((self.log_dirs[0] / METADATA).read_bytes()))
        assert len(batches) == 2
        assert f"{JUMP + 7:x}" in (batches[-1].records()[0].value or b"").hex()
        found = contents(self.log_dirs)
        assert found[f"1/t-0/{0:020d}.log"] == b"records"
        assert not {
            name for name in found if REMOTE_CLAIM in name or STANDBY_FACE in name or ".restored" in name
        }
        # The broker may write.
        ledger = ledger_of(self.store, self.log_dirs[0])
        ledger.start(Started("cluster", OWN, "host"))
        ledger.append([Released()])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with unhurried():
        yield World(tmp_path)


@contextmanager
def unhurried(step: Callable[[face.Face], None] = lambda _face: None) -> Iterator[None]:
    """Have standbys poll all the time, without what answers clients; that has `step` instead."""
    with patch.object(face.Face, "step", step), patch.object(waiting, "LONGEST_WAIT_S", 0.001):
        yield


def test_a_standby_takes_over_what_was_handed_over(world: World) -> None:
    world.hand_over()
    world.runner().run()
    world.check_taken_over()
    assert [one.broker_id for one in read_registrations(world.store)] == [OWN]
    # Started again it is the owner at once.
    world.runner().run()


def test_clients_are_told_who_leads(world: World) -> None:
    told: list[Nodes] = []

    def step(of: face.Face) -> None:
        found = read_json(of.directory / NODES_FILE, Nodes)
        assert found is not None
        told.append(found)
        if len(told) == 2:
            world.hand_over()

    with unhurried(step):
        world.runner().run()
    assert (told[0].leader, told[0].generation) == (1, 1)
    assert [one.id for one in told[0].nodes] == [1, OWN]


# Who changes files or the ledger.
CHANGES = (
    *((ClaimFile, "write"), (ClaimFile, "remove"), (runner, "settle"), (Mirror, "apply"), (Path, "rename")),
    *((take_over, "write_remote_files"), (take_over, "begin_epochs"), (take_over, "jump_ahead")),
    *((files, "write_whole"), (owner, "write_or_spare"), (directories, "fsync_directory")),
)


@contextmanager
def killed_at(at: int) -> Iterator[list[int]]:
    """Kill the standby before its change number `at` of what lasts; yields the count of changes."""
    count = [0]

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if count[0] == at:
                raise Killed
            count[0] += 1
            return do(*args, **kwargs)

        return call

    with (
        ExitStack() as stack,
        suppress(Killed),
    ):
        for module, name in CHANGES:
            stack.enter_context(patch.object(module, name, counted(getattr(module, name))))
        yield count


def test_a_take_over_that_is_killed_at_any_step_goes_on(tmp_path: Path) -> None:
    at = 0
    while True:
        (tmp_path / str(at)).mkdir()
        with unhurried():
            world = World(tmp_path / str(at))
            world.hand_over()
            with killed_at(at) as count:
                world.runner().run()
            is_whole = count[0] < at or at > 100
            world.runner().run()
        world.check_taken_over()
        if is_whole:
            break
        at += 1
    assert at > 10


def full(times: int, do: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds no room on the disk so many times."""
    left = iter(range(times))

    def call(*args: Any) -> Any:
        if next(left, None) is not None:
            failing_with(errno.ENOSPC)(*args)
        return do(*args)

    return call


def test_a_full_disk_in_a_take_over_is_told_and_it_goes_on_when_there_is_room(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    world.hand_over()
    taking = world.runner()
    statuses: list[str] = []
    monkeypatch.setattr(taking.waiting.notifier, "status", statuses.append)
    with (
        patch.object(runner, "finish_directories", full(20, runner.finish_directories)),
        patch.object(runner, "write_owner_file", full(3, runner.write_owner_file)),
    ):
        taking.run()
    told = [one.getMessage() for one in caplog.records if "the take-over" in one.getMessage()]
    assert ["No space left" in one for one in told] == [True, False, True, False]
    assert "may be deleted when it is not missed" in told[0]
    assert [one.split(": ")[0] for one in statuses] == ["the take-over waits", "the take-over goes on"] * 2
    world.check_taken_over()


def test_what_waits_for_long_is_told_again_and_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTE_EVERY_S", 0.0)
    crash(world)
    with (
        patch.object(runner, "set_aside", full(5, runner.set_aside)),
        unhurried(stop),
        pytest.raises(Stopped),
    ):
        world.runner(world.owner.log_dirs, node_id=1).run()
    assert sum("this standby waits: [Errno 28]" in one.getMessage() for one in caplog.records) == 5


def stop(_face: face.Face) -> None:
    raise Stopped


def crash(world: World) -> None:
    """Have the standby take over from an owner that has written more than that it hands over."""
    world.hand_over()
    world.owner.ledger.renew()
    world.runner().run()


def test_what_a_former_owner_has_is_set_aside_and_it_follows(world: World) -> None:
    crash(world)
    before = contents(world.owner.log_dirs)
    at = 0
    while True:
        # It is killed meanwhile.
        with killed_at(at) as count, unhurried(stop), suppress(Stopped):
            world.runner(world.owner.log_dirs, node_id=1).run()
        if count[0] < at:
            break
        at += 1
    assert at > 4
    after = contents(world.owner.log_dirs)
    (aside,) = (world.owner.log_dirs[0] / FENCED).iterdir()
    kept = {path: data for path, data in after.items() if f"{FENCED}/{aside.name}/" in path}
    assert {path.replace(f"{FENCED}/{aside.name}/", ""): data for path, data in kept.items()} == before
    assert f"0/{unfinished(META_PROPERTIES)}" in after
    assert f"1/t-0/{0:020d}.log" in after
    assert f"0/{REMOTE_OWNER}" not in after


def test_who_has_handed_over_follows_with_what_it_has(world: World) -> None:
    world.hand_over()
    world.runner().run()
    downloaded: list[int] = []
    again = world.runner(world.owner.log_dirs, node_id=1)
    with unhurried(stop), suppress(Stopped), patch.object(again.waiting, "seen", downloaded.append):
        again.run()
    assert sum(downloaded) == 0
    found = contents(world.owner.log_dirs)
    assert f"1/t-0/{0:020d}.log" in found
    assert not {path for path in found if FENCED in path or REMOTE_OWNER in path}


def test_a_claim_that_comes_second_is_lost_and_the_standby_follows_on(world: World) -> None:
    world.hand_over()
    written: list[Claim] = []
    write_first = ClaimFile.write

    def write(file: ClaimFile, claim: Claim) -> None:
        write_first(file, claim)
        written.append(claim)
        world.owner.ledger.renew()

    def step(of: face.Face) -> None:
        if written:
            stop(of)

    with patch.object(ClaimFile, "write", write), unhurried(step), pytest.raises(Stopped):
        world.runner().run()
    assert len(written) == 1
    assert not (world.log_dirs[0] / REMOTE_CLAIM).exists()
    assert read(world.store).generation == 1
    world.runner().run()
    world.check_taken_over()


def test_who_was_taken_over_from_before_it_was_done_owns_nothing(world: World) -> None:
    """Check it where the last renewal was in time: the other standby has come since."""
    world.hand_over()
    finish_directories = runner.finish_directories

    def finished(*args: Any) -> None:
        finish_directories(*args)
        reader = read(world.store)
        if reader.generation == 2:
            assert settle(reader, new_claim(reader, [taken(reader, 3)]))

    def step(of: face.Face) -> None:
        if read(world.store).generation == 3:
            stop(of)

    with patch.object(runner, "finish_directories", finished), unhurried(step), pytest.raises(Stopped):
        world.runner().run()
    assert not (world.log_dirs[0] / REMOTE_OWNER).exists()
    assert not (world.log_dirs[0] / META_PROPERTIES).exists()


def test_the_former_owner_takes_over_from_one_that_died_before_its_first_start(world: World) -> None:
    world.hand_over()
    world.runner().run()
    state = read(world.store).state
    assert isinstance(state.leader, TakenOver)
    assert list(state.standbys) == [1]
    # While it may take over, the new owner leads for a lease only.
    found = owner.read_owner(world.log_dirs[0])
    assert found is not None
    assert found.standbys == [1]
    world.runner(world.owner.log_dirs, 1).run()
    reader = read(world.store)
    assert reader.generation == 3
    assert list(reader.state.standbys) == [OWN]
    assert contents(world.owner.log_dirs)[f"1/t-0/{0:020d}.log"] == b"records"
    # Who was dead has to follow.
    with unhurried(stop), pytest.raises(Stopped):
        world.runner().run()


def test_directories_of_somebody_else_and_the_ids_of_others_are_refused(world: World) -> None:
    with pytest.raises(FatalError, match="=1 is that of the ledger's owner"):
        world.runner(node_id=1).run()
    world.log_dirs[1].joinpath("t-0").mkdir()
    with pytest.raises(FatalError, match="has data of another broker than the owner"):
        world.runner().run()
    nowhere = Listener("PLAINTEXT", "PLAINTEXT", "", 0)
    with pytest.raises(FatalError, match="needs listeners with ports"):
        world.runner(listeners=(nowhere,))
    with pytest.raises(FatalError, match="--standby needs"):
        Runner(BrokerConfig(), [], Notifier())


def test_it_waits_for_the_ledger_to_begin(tmp_path: Path) -> None:
    config = BrokerConfig(
        log_dirs=(str(tmp_path / "data"),),
        node_id=OWN,
        remote_log_storage_system_enable=True,
        mpbroker_remote_url=f"file://{tmp_path}",
    )
    early = Runner(config, [], Notifier())
    waits: list[float] = []

    def begins(timeout_s: float) -> None:
        waits.append(timeout_s)
        ledger_of(DirectoryStore(tmp_path), tmp_path).start(Started("cluster", 1, "host"))

    with patch.object(early.waiting, "wait", begins), unhurried(stop), pytest.raises(Stopped):
        early.run()
    assert len(waits) == 1


def test_a_new_owner_renews_its_lease_until_another_one_has_the_ledger(world: World) -> None:
    world.hand_over()
    reader = read(world.store)
    first, second = (new_claim(reader, [taken(reader, number)]) for number in (2, 3))
    assert settle(reader, first)
    assert renew(LedgerReader(world.store), first)
    assert read(world.store).seq == reader.seq + 1
    assert not settle(reader, second)
    assert settle(reader, again := new_claim(reader, [taken(reader, 3)]))
    assert not renew(LedgerReader(world.store), first)
    assert renew(LedgerReader(world.store), again)


def taken(reader: LedgerReader, broker_id: int) -> TakenOver:
    return TakenOver("cluster", broker_id, "host", cut_id=reader.state.cuts[-1].event.cut_id, by_standby=True)


def test_what_reads_as_damage_is_read_anew(world: World) -> None:
    poll = Follower.poll
    polls: list[LedgerReader] = []

    def damaged(follower: Follower) -> None:
        polls.append(follower.reader)
        if len(polls) == 2:
            raise LedgerDamaged("entry 7 follows another entry 6 than is there")
        if len(polls) == 3:
            world.hand_over()
        poll(follower)

    with patch.object(Follower, "poll", damaged):
        world.runner().run()
    assert polls[0] is polls[1]
    assert polls[1] is not polls[2]
    world.check_taken_over()


def test_one_that_is_read_only_serves_what_the_cut_has_and_claims_nothing(world: World) -> None:
    world.hand_over()
    told: list[MirrorPointer] = []

    def step(of: face.Face) -> None:
        found, nodes = (
            read_json(of.directory / MIRROR_FILE, MirrorPointer),
            read_json(of.directory / NODES_FILE, Nodes),
        )
        assert found is not None
        assert nodes is not None
        assert nodes.nodes[-1] == Node(OWN, "a", nodes.nodes[-1].listeners, True)
        registered = [one for one in read_registrations(world.store) if one.is_replica]
        told.append(found)
        if len(told) == 20:
            assert [(one.broker_id, one.rack, one.generation) for one in registered] == [(OWN, "a", 1)]
            assert registered[0].readable_ms > 0
            raise Stopped

    with unhurried(step), pytest.raises(Stopped):
        world.runner(read_only=True, broker_rack="a").run()
    (one,) = told[-1].partitions or ()
    assert (one.topic_id, one.log_dir, one.leader_epoch) == (TOPIC_ID, 1, 3)
    assert read(world.store).generation == 1
    # It is gone at once, with its links.
    assert read_registrations(world.store) == []
    assert not any((one / REPLICA).exists() for one in world.log_dirs)


def test_one_that_is_read_only_leads_nothing_that_it_has(world: World) -> None:
    world.hand_over()
    world.runner().run()
    with pytest.raises(FatalError, match="start it without --read-only"):
        world.runner(read_only=True).run()


def test_a_claim_is_decided_by_a_standby_that_may_lead(world: World) -> None:
    world.hand_over()
    with unhurried(stop), pytest.raises(Stopped):
        world.runner().run()
    ClaimFile(world.log_dirs[0]).write(new_claim(read(world.store), []))
    with pytest.raises(FatalError, match="start it without --read-only"):
        world.runner(read_only=True).run()
