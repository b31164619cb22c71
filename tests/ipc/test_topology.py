"""Who talks to whom: every pair once, views of the same memory, nothing overlapping."""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import process, topology
from mpbroker.ipc.process import Order, PeerOrder, ProcessContext, State, pack_order
from mpbroker.ipc.topology import (
    COORDINATOR,
    LOG,
    PROCESSES,
    SUPERVISOR,
    SharedMemory,
    handler,
    processor,
)


def test_every_pair_has_one_ring_each_way() -> None:
    pairs = [(producer, consumer) for producer, consumer, _ in topology.ring_pairs()]
    assert len(set(pairs)) == len(pairs)
    talk = set(pairs)
    assert {(COORDINATOR, LOG), (LOG, COORDINATOR)} <= talk
    for number in range(topology.MAX_HANDLERS):
        for peer in (LOG, COORDINATOR, topology.TIER, processor(0), processor(topology.MAX_PROCESSORS - 1)):
            assert {(handler(number), peer), (peer, handler(number))} <= talk
    assert all(size & (size - 1) == 0 for _, _, size in topology.ring_pairs())


def test_the_planes_share_no_ring() -> None:
    between = [
        (producer, consumer)
        for producer, consumer, _ in topology.ring_pairs()
        if topology.is_control_plane(producer) != topology.is_control_plane(consumer)
    ]
    assert {index for pair in between for index in pair} == {
        LOG,
        COORDINATOR,
        topology.TIER,
        topology.CONTROL_HANDLER,
        topology.CONTROL_PROCESSOR,
    }
    assert topology.CONTROL_QUEUED_REQUESTS <= topology.CONTROL_RING_SLOTS


def test_every_process_has_a_name_of_its_own() -> None:
    used = [0, 1, 2, 3, topology.CONTROL_ACCEPTOR, *range(topology.FIRST_PROCESSOR, PROCESSES)]
    assert len({topology.name_of(index) for index in used}) == len(used)
    assert topology.name_of(handler(3)) == "handler 3"


def test_both_ends_see_one_ring_and_neighbours_do_not(memory: SharedMemory) -> None:
    pairs = [(producer, consumer) for producer, consumer, _ in topology.ring_pairs()]
    chosen = pairs[:3] + pairs[-3:]
    for number, (producer, consumer) in enumerate(chosen):
        ring = memory.ring(producer, consumer)
        while ring.push(bytes([number + 1]) * 64):
            pass
    for number, (producer, consumer) in enumerate(chosen):
        ring = memory.ring(producer, consumer)
        slots, _ = ring.take(ring.size)
        assert slots == bytes([number + 1]) * 64 * ring.size


def test_rings_of_one_process_are_reset(memory: SharedMemory) -> None:
    memory.ring(COORDINATOR, LOG).push(bytes(64))
    memory.ring(handler(0), COORDINATOR).push(bytes(64))
    memory.ring(handler(0), LOG).push(bytes(64))
    memory.reset_rings_of(COORDINATOR)
    assert memory.ring(COORDINATOR, LOG).waiting() == 0
    assert memory.ring(handler(0), COORDINATOR).waiting() == 0
    assert memory.ring(handler(0), LOG).waiting() == 1


def test_words_of_one_process_are_not_those_of_another(memory: SharedMemory) -> None:
    names = ("dirty", "heavy", "fence_orders", "fence_acks", "roles", "orders", "states", "bulletin_acks")
    written = {}
    for number, name in enumerate(names):
        for index in range(PROCESSES):
            written[name, index] = 1000 * number + index
            memory.words(name).store(index, written[name, index])
    assert {key: memory.words(key[0]).load(key[1]) for key in written} == written


def test_orders_and_states(memory: SharedMemory) -> None:
    context = ProcessContext(COORDINATOR, memory, BrokerConfig())
    states = memory.words("states")
    assert not context.must_stop()
    assert states.load(COORDINATOR) == State.STARTING
    context.ready()
    assert states.load(COORDINATOR) == State.READY
    memory.words("orders").store(LOG, Order.STOP)
    assert not context.must_stop()
    memory.words("orders").store(COORDINATOR, Order.STOP)
    assert context.must_stop()
    context.stopped()
    assert states.load(COORDINATOR) == State.STOPPED


def test_a_fence_is_seen_until_it_is_acknowledged(memory: SharedMemory) -> None:
    roles, orders, acks = (memory.words(name) for name in ("roles", "fence_orders", "fence_acks"))
    roles.store(LOG, 1)
    context = ProcessContext(COORDINATOR, memory, BrokerConfig())
    assert context.pending_order() is None
    roles.store(LOG, 0)
    orders.store(COORDINATOR, pack_order(1, 2, LOG))
    assert context.pending_order() == context.pending_order() == PeerOrder(LOG, 2, False)
    assert not context.is_alive(LOG)
    assert acks.load(COORDINATOR) == 0
    context.acknowledge_order()
    assert context.pending_order() is None
    assert acks.load(COORDINATOR) == pack_order(1, 2, LOG)
    roles.store(LOG, 2)
    orders.store(COORDINATOR, pack_order(2, 0, LOG))
    assert context.pending_order() == PeerOrder(LOG, 0, True)


def test_a_successor_does_not_see_fences_of_before_its_birth(memory: SharedMemory) -> None:
    memory.words("fence_orders").store(COORDINATOR, pack_order(7, 0, handler(0)))
    assert ProcessContext(COORDINATOR, memory, BrokerConfig()).pending_order() is None


def test_ready_and_stopped_wake_the_supervisor(memory: SharedMemory) -> None:
    context = ProcessContext(COORDINATOR, memory, BrokerConfig())
    bell = memory.doorbell(SUPERVISOR)
    bell.arm()
    context.ready()
    assert process.readable(bell.fd, 0)
    bell.drain()
    context.stopped()
    assert process.readable(bell.fd, 0)


def test_waiting_ends_at_a_ring(memory: SharedMemory) -> None:
    context = ProcessContext(COORDINATOR, memory, BrokerConfig())
    looks = []

    def something_waits() -> bool:
        looks.append(1)
        # Rung between the look and the sleep: it must not be lost.
        memory.doorbell(COORDINATOR).ring()
        return False

    beat = context.counters.heartbeat_ns
    context.wait(something_waits, 10_000)
    assert looks == [1]
    assert context.counters.heartbeat_ns > beat
