"""What the shared-memory primitives cost here: ns per push and pop, µs per wake-up, GB/s through the arena.

    python -m ops.bench.shm [--json] [--scale N]

Every line is the best of several runs, because a shared machine only ever adds time. Two-process lines need
two free cores to mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shm._bench import ring_drain, ring_rounds, ring_stream, table_storm, table_verify
from shm.arena import Arena
from shm.counters import CounterPage, page_bytes
from shm.doorbell import BYTES as BELL_BYTES
from shm.doorbell import Doorbell
from shm.region import sparse
from shm.ring import Ring, ring_bytes
from shm.table import SlotTable, slot_bytes

RUNS = 5
RING_SLOTS = 1024
DESCRIPTOR = struct.Struct("<4Q32x")
ARENA_BYTES = 1 << 30
MAX_SLEEP_MS = 5000


@dataclass(frozen=True)
class Line:
    what: str
    value: float
    unit: str


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(RUNS))


def beside(work: Callable[[], None], measure: Callable[[], float]) -> float:
    """Runs `work` in a child while measuring; the child must end well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        return measure()
    finally:
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError("the other process of the benchmark failed")


def native_ring(batch: int, slots: int) -> float:
    """ns per slot pushed and popped by one process."""
    ring = Ring(sparse(ring_bytes(RING_SLOTS)), RING_SLOTS)
    began = time.perf_counter_ns()
    ring_rounds(ring, slots // batch, batch)
    return (time.perf_counter_ns() - began) / slots


def streamed_ring(batch: int, slots: int) -> float:
    """ns per slot from process to process; each one's seven check words are computed and compared."""
    memory = sparse(ring_bytes(RING_SLOTS))

    def drain() -> float:
        began = time.perf_counter_ns()
        if ring_drain(Ring(memory, RING_SLOTS), slots):
            raise RuntimeError("slots arrived damaged")
        return (time.perf_counter_ns() - began) / slots

    return beside(lambda: ring_stream(Ring(memory, RING_SLOTS), slots, batch), drain)


def python_ring(batch: int, slots: int) -> float:
    """ns per slot through the Python methods."""
    ring, data = Ring(sparse(ring_bytes(RING_SLOTS)), RING_SLOTS), bytes(64 * batch)
    push = ring.push if batch == 1 else ring.push_batch
    began = time.perf_counter_ns()
    for _ in range(slots // batch):
        push(data)
        ring.take(batch)
    return (time.perf_counter_ns() - began) / slots


def wake_up(rounds: int) -> float:
    """µs from ringing to the sleeper having taken the slot, half a ping-pong; both sides sleep each time."""
    rings, bells = sparse(2 * 4096), sparse(2 * BELL_BYTES)
    fds = [Doorbell.new_fd(), Doorbell.new_fd()]

    def side(mine: int) -> tuple[Callable[[], None], Callable[[], None]]:
        outbox, inbox = Ring(rings[4096 * (1 - mine) :], 16), Ring(rings[4096 * mine :], 16)
        own = Doorbell(bells[BELL_BYTES * mine :], fds[mine])
        other = Doorbell(bells[BELL_BYTES * (1 - mine) :], fds[1 - mine])
        slot = bytes(64)

        def send() -> None:
            outbox.push(slot)
            other.ring()

        def receive() -> None:
            while not inbox.take()[0]:
                own.wait(MAX_SLEEP_MS, lambda: inbox.waiting() > 0)

        return send, receive

    def pong() -> None:
        send, receive = side(1)
        for _ in range(rounds):
            receive()
            send()

    def ping() -> float:
        send, receive = side(0)
        began = time.perf_counter_ns()
        for _ in range(rounds):
            send()
            receive()
        return (time.perf_counter_ns() - began) / rounds / 2 / 1000

    try:
        return beside(pong, ping)
    finally:
        for fd in fds:
            os.close(fd)


def unheard_ring(rounds: int) -> float:
    """ns for ringing a consumer that is awake: a fence and a load."""
    fd = Doorbell.new_fd()
    bell = Doorbell(sparse(BELL_BYTES), fd)
    began = time.perf_counter_ns()
    for _ in range(rounds):
        bell.ring()
    took = (time.perf_counter_ns() - began) / rounds
    os.close(fd)
    return took


def arena_transfer(size: int, blocks: int) -> float:
    """GB/s of copying into a block, lending it by descriptor, and the borrower copying it out."""
    memory, rings, bells = sparse(ARENA_BYTES), sparse(2 * 8192), sparse(2 * BELL_BYTES)
    fds = [Doorbell.new_fd(), Doorbell.new_fd()]
    bell = [Doorbell(bells[BELL_BYTES * i :], fds[i]) for i in (0, 1)]

    def borrow() -> None:
        arena, inbox, outbox = Arena(memory, 1), Ring(rings, 64), Ring(rings[8192:], 64)
        into, left = bytearray(size), blocks
        while left:
            taken, _ = inbox.take()
            if not taken:
                bell[1].wait(MAX_SLEEP_MS, lambda: inbox.waiting() > 0)
            for block, generation, length, _ in DESCRIPTOR.iter_unpack(taken):
                if not arena.check(block, generation):
                    raise RuntimeError("a lent block changed its generation")
                into[:length] = arena.view(block, length)
                left -= 1
            if taken:
                outbox.push_batch(taken)
                bell[0].ring()

    def lend() -> float:
        arena, outbox, inbox = Arena(memory, ARENA_BYTES // 4), Ring(rings, 64), Ring(rings[8192:], 64)
        data, given, returned = os.urandom(size), 0, 0
        began = time.perf_counter_ns()
        while returned < blocks:
            while given < blocks and given - returned < 16:
                block = arena.allocate(size)
                arena.view(block, size)[:] = data
                outbox.push(DESCRIPTOR.pack(block, arena.lend(block, 1), size, 0))
                given += 1
                bell[1].ring()
            taken, _ = inbox.take()
            if not taken:
                bell[0].wait(MAX_SLEEP_MS, lambda: inbox.waiting() > 0)
            for block, generation, length, _ in DESCRIPTOR.iter_unpack(taken):
                arena.take_back(block, generation)
                arena.free(block, length)
                returned += 1
        return -(size * blocks) / (time.perf_counter_ns() - began)

    try:
        return beside(borrow, lend)
    finally:
        for fd in fds:
            os.close(fd)


def table_reads(payload_bytes: int, reads: int) -> float:
    """ns per consistent copy of a slot that nobody writes meanwhile."""
    table = SlotTable(sparse(slot_bytes(payload_bytes)), 1, payload_bytes)
    table_storm(table, 0, 1)
    began = time.perf_counter_ns()
    table_verify(table, 0, reads)
    return (time.perf_counter_ns() - began) / reads


def counter_adds(adds: int) -> float:
    page = CounterPage(sparse(page_bytes(8, 1)), 8, 1)
    began = time.perf_counter_ns()
    for _ in range(adds):
        page.add(3)
    return (time.perf_counter_ns() - began) / adds


def allocations(size: int, rounds: int) -> float:
    arena = Arena(sparse(ARENA_BYTES), ARENA_BYTES)
    began = time.perf_counter_ns()
    for _ in range(rounds):
        arena.free(arena.allocate(size), size)
    return (time.perf_counter_ns() - began) / rounds


def lines(scale: float) -> list[Line]:
    def n(count: int) -> int:
        return max(64, int(count * scale) // 64 * 64)

    found = [
        Line(
            "ring, native, one process, batches of 1",
            best(lambda: native_ring(1, n(4_000_000))),
            "ns per push+pop",
        ),
        Line(
            "ring, native, one process, batches of 64",
            best(lambda: native_ring(64, n(4_000_000))),
            "ns per push+pop",
        ),
        Line(
            "ring, native, two processes, batches of 64, checked",
            best(lambda: streamed_ring(64, n(2_000_000))),
            "ns per slot",
        ),
        Line("ring, Python, batches of 1", best(lambda: python_ring(1, n(200_000))), "ns per push+pop"),
        Line("ring, Python, batches of 64", best(lambda: python_ring(64, n(2_000_000))), "ns per push+pop"),
        Line("doorbell, to a sleeper in another process", best(lambda: wake_up(n(10_000))), "us per wake-up"),
        Line("doorbell, to who is awake", best(lambda: unheard_ring(n(500_000))), "ns per ring"),
    ]
    found += [
        Line(
            f"arena, copied in, lent, copied out, {size >> 10} KiB",
            -best(partial(arena_transfer, size, n(blocks))),
            "GB/s",
        )
        for size, blocks in ((16 << 10, 20_000), (128 << 10, 6_000), (1 << 20, 1_000))
    ]
    return [
        *found,
        Line("arena, allocate and free, 1000 bytes", best(lambda: allocations(1000, n(200_000))), "ns"),
        Line("arena, allocate and free, 1 MiB", best(lambda: allocations(1 << 20, n(200_000))), "ns"),
        Line("table, read 128 bytes, native", best(lambda: table_reads(128, n(2_000_000))), "ns"),
        Line("counter, add, Python", best(lambda: counter_adds(n(500_000))), "ns"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of the work to do; 1 takes about ten seconds"
    )
    asked = parser.parse_args()
    measured = lines(asked.scale)
    if asked.json:
        print(json.dumps([asdict(line) for line in measured], indent=1))
        return
    for line in measured:
        print(f"{line.what:<56} {line.value:10.1f} {line.unit}")


if __name__ == "__main__":
    main()
