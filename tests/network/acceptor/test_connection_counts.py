"""An acceptor's counts against what processors really have, while both are killed at any instruction."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
from collections import Counter

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.connections import OUTSTANDING_MAX, Ledger
from mpbroker.ipc.topology import SharedMemory
from mpbroker.network import handover
from mpbroker.network.acceptor.connection_counts import ConnectionCounts
from mpbroker.network.acceptor.connection_quotas import ConnectionQuotas, Limits

PROCESSOR = topology.processor(0)
OTHER = topology.CONTROL_PROCESSOR
HERE, THERE = b"\x7f\0\0\1", b"\x0a\0\0\2"


def counts_of(memory: SharedMemory) -> ConnectionCounts:
    quotas = ConnectionQuotas(Limits())
    quotas.add_listener(0, Limits())
    quotas.add_listener(1, Limits())
    return ConnectionCounts({role: memory.connections(role) for role in (PROCESSOR, OTHER)}, quotas)


def rows_of(ledger: Ledger) -> dict[int, tuple[int, bytes]]:
    return ledger.snapshot()[2]


def test_a_connection_is_counted_once_from_the_hand_over_to_its_end(memory: SharedMemory) -> None:
    counts, ledger = counts_of(memory), memory.connections(PROCESSOR)
    ticket = ledger.hand(1, HERE)
    counts.quotas.add(1, HERE)
    counts.handed(PROCESSOR, ticket, 1, HERE)
    for step in (lambda: ledger.open(7, ticket, 1, HERE), lambda: ledger.take(ticket)):
        step()
        counts.catch_up()
        assert (counts.quotas.total, counts.quotas.by_listener[1], counts.quotas.by_ip[HERE]) == (1, 1, 1)
        assert counts_of(memory).quotas.total == 1, "a successor counts the same"
    ledger.close(7)
    counts.catch_up()
    assert (counts.quotas.total, dict(counts.quotas.by_ip)) == (0, {})


def test_what_the_other_acceptor_handed_over_is_counted_too(memory: SharedMemory) -> None:
    counts, ledger = counts_of(memory), memory.connections(OTHER)
    ticket = ledger.hand(0, THERE)
    ledger.open(0, ticket, 0, THERE)
    ledger.take(ticket)
    counts.catch_up()
    assert counts.quotas.by_ip[THERE] == 1
    ledger.close(0)
    counts.catch_up()
    assert counts.quotas.total == 0


def test_a_reader_that_was_overtaken_counts_the_rows(memory: SharedMemory) -> None:
    counts, ledger = counts_of(memory), memory.connections(PROCESSOR)
    for round_ in range(1, 40_000):
        ledger.open(round_ % 3, round_, 0, HERE)
        if round_ > 2:
            ledger.close((round_ + 1) % 3)
    counts.catch_up()
    assert counts.quotas.total == len(rows_of(ledger)) == 2


def test_what_could_not_be_sent_leaves_nothing(memory: SharedMemory) -> None:
    ledger = memory.connections(PROCESSOR)
    ticket = ledger.hand(0, HERE)
    ledger.take_back(ticket)
    assert (ledger.outstanding(), counts_of(memory).quotas.total) == (0, 0)
    assert ledger.hand(0, THERE) == ticket


def test_an_acceptor_killed_while_it_sends_is_mended_by_a_mark(memory: SharedMemory) -> None:
    """Check that a connection that was noted but never sent is not counted."""
    ledger = memory.connections(PROCESSOR)
    ledger.hand(0, HERE)
    counts = counts_of(memory)
    assert counts.quotas.total == 1
    mark = ledger.mark()
    counts.recount_when_taken(PROCESSOR, mark)
    counts.catch_up()
    assert counts.quotas.total == 1
    ledger.take(mark)
    counts.catch_up()
    assert (counts.quotas.total, ledger.outstanding()) == (0, 0)


def test_a_role_without_a_successor_leaves_nothing(memory: SharedMemory) -> None:
    counts, ledger = counts_of(memory), memory.connections(PROCESSOR)
    ledger.open(0, ledger.hand(0, HERE), 0, HERE)
    ledger.hand(0, HERE)
    counts.catch_up()
    ledger.clear()
    ledger.abandon()
    counts.catch_up()
    assert (counts.quotas.total, ledger.outstanding()) == (0, 0)


# ---- kills


def _serve(memory: SharedMemory, inbox: socket.socket, seed: int) -> None:
    """A processor's dealings with its ledger, and nothing else: takes, serves and closes for ever."""
    ledger, dice = memory.connections(PROCESSOR), random.Random(seed)
    free, taken = list(range(64)), []
    inbox.setblocking(True)
    while True:
        message, fds, _, _ = socket.recv_fds(inbox, handover.HANDOVER.size, 1)
        ticket, listener, address = handover.unpack(message)
        if fds:
            os.close(fds[0])
            if free:
                taken.append(free.pop(dice.randrange(len(free))))
                ledger.open(taken[-1], ticket, listener, address)
            else:
                ledger.refuse(ticket)
        while taken and dice.random() < 0.45:
            free.append(taken.pop(dice.randrange(len(taken))))
            ledger.close(free[-1])
        ledger.take(ticket)  # at last: whoever waits for it sees nothing change afterwards


def _send_for_ever(memory: SharedMemory, outbox: socket.socket, seed: int) -> None:
    ledger, dice = memory.connections(PROCESSOR), random.Random(seed)
    fd = os.open("/dev/null", os.O_RDONLY)
    outbox.setblocking(True)
    while True:
        if ledger.outstanding() < OUTSTANDING_MAX:
            listener, address = dice.randrange(2), dice.choice((HERE, THERE))
            ticket = ledger.hand(listener, address)
            socket.send_fds(outbox, [handover.pack(ticket, listener, address)], [fd])


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def _settle(memory: SharedMemory, counts: ConnectionCounts, outbox: socket.socket) -> None:
    """Do what an acceptor does when a processor is there: set a mark, and look again when it was taken."""
    ledger = memory.connections(PROCESSOR)
    while ledger.outstanding() >= OUTSTANDING_MAX:
        counts.catch_up()
    mark = ledger.mark()
    outbox.setblocking(True)
    outbox.send(handover.pack(mark, handover.MARK, b""))
    counts.recount_when_taken(PROCESSOR, mark)
    while ledger.taken < mark:
        counts.catch_up()


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_right_after_any_kill(memory: SharedMemory, seed: int) -> None:
    """Kill one side while both work, and check that old and new acceptors count what the rows have."""
    dice = random.Random(seed)
    context = multiprocessing.get_context("fork")
    outbox, inbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ledger, counts = memory.connections(PROCESSOR), counts_of(memory)
    with outbox, inbox:
        server = context.Process(target=_serve, args=(memory, inbox, seed), daemon=True)
        server.start()
        for round_ in range(25):
            sender = context.Process(
                target=_send_for_ever, args=(memory, outbox, 100 * seed + round_), daemon=True
            )
            sender.start()
            enough = ledger.taken + dice.randrange(1, 400)
            while ledger.taken < enough:
                counts.catch_up()
            if dice.random() < 0.5:
                _kill(server)
                _kill(sender)
                ledger.clear()
                server = context.Process(target=_serve, args=(memory, inbox, round_), daemon=True)
                server.start()
            else:
                _kill(sender)
            _settle(memory, counts, outbox)
            counts.catch_up()
            real = Counter(rows_of(ledger).values())
            for each in (counts, counts_of(memory)):
                assert each.quotas.total == sum(real.values())
                assert each.quotas.by_ip == Counter(
                    {a: n for a in (HERE, THERE) if (n := sum(c for (_, b), c in real.items() if a == b))}
                )
                assert all(
                    each.quotas.by_listener[n] == sum(c for (m, _), c in real.items() if m == n)
                    for n in (0, 1)
                )
            assert ledger.outstanding() == 0
        _kill(server)
