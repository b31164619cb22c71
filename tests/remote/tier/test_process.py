"""The main thread of the tier: topics, calls of handlers, their deaths, and its own end."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mpbroker.ipc import calls
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import MetadataBase, TopicImage
from mpbroker.ipc.process import ExitCode, Order, ProcessContext, State, pack_order
from mpbroker.ipc.rings import RingPair
from mpbroker.ipc.rpc import RpcClient
from mpbroker.ipc.slots import unpack_call
from mpbroker.ipc.topology import TIER, SharedMemory, handler
from mpbroker.protocol.errors import ErrorCode
from mpbroker.remote.tier import process
from mpbroker.remote.tier.cache import RemoteCache
from mpbroker.remote.tier.process import TierProcess
from tests.support.fault_store import Fault, FaultStore
from tests.support.full_disk import failing_with
from tests.support.polling import until
from tests.support.tier_world import CLUSTER, MakeWorld, TierWorld

HANDLER = handler(0)


class FakeHandler:
    """Calls the tier as a handler does."""

    def __init__(self, memory: SharedMemory, context: ProcessContext) -> None:
        memory.words("roles").store(HANDLER, 1)
        arena = memory.arena(HANDLER)
        arena.reset()
        self.lender = Lender(arena, HANDLER)
        self.rings = RingPair(context, TIER)
        self.client = RpcClient(
            self.lender, TIER, memory.arena(TIER), self.rings.push, context.call_numbers()
        )
        self.answers: list[calls.Message] = []

    def ask(self, message: calls.Message) -> None:
        self.client.call(message, self.answers.append)
        self.rings.flush()

    def receive(self) -> None:
        for slot in self.rings.take():
            self.client.answered(unpack_call(slot))
        self.rings.flush()


class Party:
    """A tier process that is stepped, with a store in a directory, and a handler."""

    def __init__(self, world: TierWorld, store: Path) -> None:
        self.world = world
        memory = world.rig.memory
        store.mkdir()
        config = replace(world.rig.config, mpbroker_remote_url=f"file://{store}")
        self.process = TierProcess(ProcessContext(TIER, memory, config), CLUSTER)
        self.context = ProcessContext(HANDLER, memory, config)
        self.handler = FakeHandler(memory, self.context)

    def step(self) -> None:
        self.process.step()
        self.handler.receive()

    def asked(self, message: calls.Message) -> calls.Message:
        self.handler.ask(message)
        until(lambda: self.handler.answers, "the tier answers", self.step)
        return self.handler.answers.pop()

    def announce(self) -> None:
        memory = self.world.rig.memory
        publisher = BulletinPublisher(
            memory.private.block("bulletin"), memory.words("bulletin_acks"), lambda: [TIER]
        )
        assert self.world.topics.now is not None
        topics: list[TopicImage] = list(self.world.topics.now.values())
        publisher.publish_base(msgspec.msgpack.encode(MetadataBase(1, CLUSTER, 1, topics)))

    def order(self, sequence: int, stage: int, role: int) -> None:
        memory = self.world.rig.memory
        order = pack_order(sequence, stage, role)
        memory.words("fence_orders").store(TIER, order)
        until(lambda: memory.words("fence_acks").load(TIER) == order, "it acknowledges", self.process.step)


@pytest.fixture
def party(worlds: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Party]:
    # The thread of the tests would not get its priority back.
    monkeypatch.setattr(process, "only_when_idle", lambda: None)
    world = worlds()
    world.fill(4)
    made = Party(world, tmp_path / "store")
    yield made
    made.process.tier.stop()


def window(party: Party, offset: int) -> calls.RemoteWindow:
    slot, generation, _ = party.world.broker.targets[0]
    return calls.RemoteWindow(slot, generation, offset)


def test_a_window_of_an_uploaded_segment_comes_into_the_cache(party: Party) -> None:
    party.announce()
    party.process.step()
    party.process.writer.begin()
    while not party.process.writer.turn() > 0:
        pass
    ready = party.asked(window(party, 4))
    assert isinstance(ready, calls.RemoteWindowReady), ready
    assert (ready.base, ready.end) == (3, 6)
    (log,) = Path(ready.path).glob("*.log")
    assert log.read_bytes() == party.world.kept[0, 3]
    # Nothing is lent any more.
    until(lambda: not party.process._calls._lender.in_use_bytes, "answers are given back", party.step)
    assert party.handler.lender.in_use_bytes == 0


def test_before_the_store_is_open_a_call_fails_at_once(party: Party) -> None:
    answer = party.asked(window(party, 0))
    assert isinstance(answer, calls.Failed)
    assert "not opened the object store yet" in answer.message


def test_a_partition_that_the_tier_does_not_know_fails(party: Party) -> None:
    party.process.writer.begin()
    answer = party.asked(window(party, 0))
    assert isinstance(answer, calls.Failed)
    assert answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_on_a_full_disk_the_cache_is_opened_later(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    party.process.writer.begin()
    with monkeypatch.context() as full:
        full.setattr(RemoteCache, "open", failing_with(errno.ENOSPC))
        assert isinstance(party.asked(window(party, 0)), calls.Failed)
        assert party.process._calls.downloads is None
    party.step()
    assert party.process._calls.downloads is not None


def test_other_calls_are_refused(party: Party) -> None:
    answer = party.asked(calls.FindToClean())
    assert isinstance(answer, calls.Failed)
    assert "FindToClean" in answer.message


def test_a_dead_handlers_answers_go_to_nobody_and_its_successor_is_served(party: Party) -> None:
    memory = party.world.rig.memory
    party.asked(window(party, 0))
    # Its next answer stays lent: it dies with it.
    party.handler.ask(window(party, 0))
    party.process.step()
    assert party.process._calls._lender.in_use_bytes
    memory.words("roles").store(HANDLER, 0)
    party.order(1, 2, HANDLER)
    assert party.process._calls._lender.in_use_bytes == 0
    memory.reset_rings_of(HANDLER)
    party.order(2, 0, HANDLER)
    party.handler = FakeHandler(memory, party.context)
    assert isinstance(party.asked(window(party, 0)), calls.Failed)


def test_it_serves_until_it_is_told_to_stop(party: Party) -> None:
    context = party.process.context
    memory = party.world.rig.memory
    memory.words("orders").store(TIER, Order.STOP)
    assert party.process.serve() == ExitCode.STOPPED
    assert memory.words("states").load(TIER) == State.STOPPED
    assert context.must_stop()


def test_a_request_that_hangs_does_not_hold_up_the_stop(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = FaultStore(party.world.memory_store)
    hanging.plan("create", Fault.HANG)
    monkeypatch.setattr(process, "STOP_S", 0.2)
    monkeypatch.setattr(party.process.tier, "_opened", lambda _url, _timeout_ms: hanging)
    memory = party.world.rig.memory
    stopping = threading.Thread(
        target=lambda: (hanging.waiting.acquire(), memory.words("orders").store(TIER, Order.STOP))
    )
    stopping.start()
    assert party.process.serve() == ExitCode.STOPPED
    stopping.join()
    assert memory.words("states").load(TIER) == State.STOPPED
    hanging.release()


def test_a_bug_in_the_thread_ends_the_process(party: Party) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    party.process.writer.run = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        party.process.serve()
