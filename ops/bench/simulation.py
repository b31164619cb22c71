"""Play a broker and its clients, turn by turn, and count what they get: the clockwork of ops/bench/model.py.

What is played:

* A process sleeps until something comes. Then it takes turns until nothing is left. A turn takes all that has
  come, costs `turn_us` and so much for each request, and hands the requests on.
* Generator and processor hand each answer or request to the socket at once. The others, and the processor
  towards handlers, hand on at the end of the turn, all together.
* A process that is woken runs where it ran last, or else on an idle core, or else it waits where it ran last.
  It keeps its core until it sleeps. An idle core takes one that waits elsewhere only if that has not run for
  a while: Linux lets the others wait for the core where their caches are warm.
* A core that was idle needs time until the woken process runs.
* A commit round is the log worker's second thread. It takes all that was appended and works in parts; in
  between it waits for the disk without a core: for the write, then for the sync.

How long a step takes is drawn from the exponential distribution around its mean, as queueing models do: if
each took the same time, requests would run in step for ever. The same draws come in each run.

Time is in microseconds.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from random import Random
from typing import Any

KINDS = ("generator", "processor", "handler", "log worker")
# Costs of what no cache holds are given for so many connections or partitions; see `Hop.cold_us`.
COLD_CONNECTIONS, COLD_PARTITIONS = 10_000, 1000
# An idle core takes a process from another's queue if it has not run for so long (sched_migration_cost_ns).
MIGRATION_US = 500.0
# A round works, writes, works, syncs, works.
ROUND_PARTS = 3
# Rounds of several log workers at once on one device (docs/PERFORMANCE.md, "The commit journal").
OVERLAP = 1.5
# As BATCH_REQUESTS_MAX of mpbroker/network/processor/dispatch.pxi: a handler gets so many at most at once.
BATCH = 256
# A turn hands to sockets in so many pieces at most. More change nothing and take longer to play.
PIECES = 64
# Each connection is answered so often before the counting begins, and while it lasts. Few connections are
# played longer: until so many answers were counted.
WARM_UP, MEASURED, ANSWERS = 2, 4, 5000


def cold_share(connections: float) -> float:
    """Return which part of `cold_us` a request costs among so many connections.

    Misses of a cache grow with the root of what is used (Hartstein et al., "Cache miss behavior: is it
    sqrt(2)?", 2006).
    """
    return math.sqrt(connections / COLD_CONNECTIONS)


@dataclass(frozen=True)
class Hop:
    """What a kind of process costs: for each turn, for each request, and for what no cache holds.

    `cold_us` is what a request costs more among `COLD_CONNECTIONS`, and less among fewer (`cold_share`).
    """

    turn_us: float
    request_us: float
    cold_us: float = 0.0

    def each_us(self, connections: float) -> float:
        return self.request_us + self.cold_us * cold_share(connections)


@dataclass(frozen=True)
class Costs:
    """All that is known of a broker and its generator.

    `wake_us`: from a wake-up until a process runs on a core that was idle, which it occupies meanwhile.
    `append_us`: for each further partition of a log worker's turn among `COLD_PARTITIONS`. `gather_us`: the
    same of a commit round. `disk_us`: how long a commit round waits for the disk, 0 with `os`; `round_us`:
    the CPU of one.
    """

    hops: Mapping[str, Hop]
    wake_us: float
    append_us: float = 0.0
    disk_us: float = 0.0
    round_us: float = 0.0
    gather_us: float = 0.0


@dataclass(frozen=True)
class Setup:
    """What is played. Without a generator the clients are elsewhere, and send again at once."""

    connections: int
    cores: int
    processors: int = 1
    handlers: int = 2
    log_workers: int = 1
    partitions: int = 1
    generator: bool = True

    def having(self, name: str, number: int) -> Setup:
        """Return the same with so many of what a field names."""
        changed: dict[str, Any] = {name: number}
        return replace(self, **changed)

    def doubled(self, name: str) -> Setup:
        return self.having(name, 2 * getattr(self, name))


@dataclass(frozen=True)
class Played:
    """What clients got, and how often each kind of process had a turn for a request."""

    requests_per_s: float
    turns: Mapping[str, float]


class Step(IntEnum):
    """Where a request is on its way: not served, durable, or answered."""

    ASKED = 0
    DURABLE = 1
    ANSWERED = 2


@dataclass
class _Process:
    """`waiting` are requests that have come, by step. `load` are those handed to it and not done."""

    kind: str
    core: int
    waiting: deque[tuple[Step, int]] = field(default_factory=deque)
    awake: bool = False
    ran_at: float = -MIGRATION_US
    # What it does when it gets a core; its next turn if nothing else.
    resume: Callable[[], None] | None = None
    load: int = 0

    def take(self) -> Sequence[int]:
        """Take all that waits. Return the requests of each step."""
        found = [0] * len(Step)
        for step, requests in self.waiting:
            found[step] += requests
        self.waiting.clear()
        return found


class _Cores:
    """Cores with a queue each, and the events to come."""

    def __init__(self, cores: int, wake_us: Callable[[], float]) -> None:
        self.now = 0.0
        self._wake_us = wake_us
        self._running: list[_Process | None] = [None] * cores
        self._queues: list[deque[_Process]] = [deque() for _ in range(cores)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_us: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_us, self._count, act))

    def step(self) -> None:
        """Go to the next event and let it happen."""
        self.now, _, act = heapq.heappop(self._events)
        act()

    def wake(self, process: _Process) -> None:
        """Let a sleeping process run: at once on its core or on an idle one, or when its core is free."""
        if self._running[process.core] is not None:
            idle = (number for number, running in enumerate(self._running) if running is None)
            process.core = next(idle, process.core)
        if self._running[process.core] is None:
            self._running[process.core] = process
            self.after(self._wake_us(), lambda: self._go_on(process))
        else:
            self._queues[process.core].append(process)

    def release(self, process: _Process) -> None:
        """Take the core from a process that sleeps, and give it to one that waits."""
        process.ran_at = self.now
        self._running[process.core] = None
        waiting = self._next(process.core)
        if waiting is not None:
            waiting.core = process.core
            self._running[process.core] = waiting
            self._go_on(waiting)

    def _next(self, core: int) -> _Process | None:
        if self._queues[core]:
            return self._queues[core].popleft()
        for queue in self._queues:
            for process in queue:
                if self._may_move(process):
                    queue.remove(process)
                    return process
        return None

    def _may_move(self, process: _Process) -> bool:
        return self.now - process.ran_at > MIGRATION_US

    def _go_on(self, process: _Process) -> None:
        assert process.resume is not None
        process.resume()


class _Game:
    """A broker of `setup` at `costs`, and how far it is."""

    def __init__(self, costs: Costs, setup: Setup) -> None:
        self.costs, self.setup = costs, setup
        self._random = Random(0)
        self.cores = _Cores(setup.cores, lambda: self._drawn(costs.wake_us))
        self.answered = 0
        self.turns: dict[str, int] = {}
        self._made = 0
        # Who of a kind gets the odd request next.
        self._next_of: dict[str, int] = {}
        self.generators = self._make("generator", int(setup.generator))
        self.processors = self._make("processor", setup.processors)
        self.flushers = self._make("flusher", setup.log_workers)
        self.handlers = self._make("handler", setup.handlers)
        self.log_workers = self._make("log worker", setup.log_workers)
        near = {"generator": setup.connections, "processor": setup.connections / setup.processors}
        self._each_us = {kind: hop.each_us(near.get(kind, 0)) for kind, hop in costs.hops.items()}
        # A processor receives a request and sends its answer.
        self._each_us["processor"] /= 2

    def _make(self, kind: str, number: int) -> list[_Process]:
        """Make processes, on one core after the other."""
        made = []
        for _ in range(number):
            process = _Process(kind, self._made % self.setup.cores)
            process.resume = partial(self._turn, process)
            self._made += 1
            made.append(process)
        return made

    def give(self, process: _Process, step: Step, requests: int) -> None:
        """Hand requests to a process, and wake it if it sleeps."""
        process.waiting.append((step, requests))
        if not process.awake:
            process.awake = True
            self.cores.wake(process)

    def share(self, processes: list[_Process], step: Step, requests: int) -> None:
        """Hand requests to several processes, to each the same number, the odd ones in turn."""
        count = len(processes)
        if count == 1:
            if requests:
                self.give(processes[0], step, requests)
            return
        first = self._next_of.get(processes[0].kind, 0)
        for number in range(max(count - requests, 0), count):
            self.give(processes[(first - number) % count], step, (requests + number) // count)
        self._next_of[processes[0].kind] = (first + requests) % count

    def begin(self) -> None:
        """Let each connection send its first request."""
        self.to_clients(self.setup.connections, answers=False)

    def to_clients(self, requests: int, *, answers: bool = True) -> None:
        self.answered += requests if answers else 0
        if self.generators:
            self.give(self.generators[0], Step.ANSWERED, requests)
        else:
            self.share(self.processors, Step.ASKED, requests)

    def _turn(self, process: _Process) -> None:
        """Let a process take what waits, work on it, and hand it on."""
        took = process.take()
        self.turns[process.kind] = self.turns.get(process.kind, 0) + 1
        if process.kind == "flusher":
            self._round(process, took[Step.ASKED], 1)
            return
        turn_us = self.costs.hops[process.kind].turn_us
        each_us = self._each_us[process.kind]
        asked, _, answered = took
        work_us = self._drawn(turn_us)
        if process.kind == "generator":
            work_us = self._each(answered, work_us, each_us, partial(self.share, self.processors, Step.ASKED))
        elif process.kind == "processor":
            work_us = self._each(answered, work_us, each_us, self.to_clients)
            work_us = self._each(asked, work_us, each_us)
        else:
            work_us = self._each(asked, work_us, each_us)
        if process.kind == "log worker":
            work_us += self._apart_us(asked, self.costs.append_us)
        self.cores.after(work_us, lambda: self._end(process, took))

    def _drawn(self, mean_us: float, steps: int = 1) -> float:
        """Draw how long so many steps take, one after the other."""
        if not mean_us or not steps:
            return 0.0
        return (
            self._random.expovariate(1 / mean_us) if steps == 1 else self._random.gammavariate(steps, mean_us)
        )

    def _each(
        self, requests: int, begun_us: float, each_us: float, hand_on: Callable[[int], None] | None = None
    ) -> float:
        """Return when the last of some requests is done, and hand on each as it is done."""
        if hand_on is None:
            return begun_us + self._drawn(each_us, requests)
        piece, done = max(requests // PIECES, 1), 0
        while done < requests:
            some = min(piece, requests - done)
            done += some
            begun_us += self._drawn(each_us, some)
            self.cores.after(begun_us, partial(hand_on, some))
        return begun_us

    def _apart_us(self, requests: int, cost_us: float) -> float:
        """Return what it costs that requests of a turn or round are for different partitions."""
        partitions = self.setup.partitions
        different = min(requests, max(partitions // self.setup.log_workers, 1))
        return cost_us * math.sqrt(partitions / COLD_PARTITIONS) * max(different - 1, 0)

    def _end(self, process: _Process, took: Sequence[int]) -> None:
        """End a turn: begin the next one or sleep, and hand on what goes together."""
        self._again_or_sleep(process)
        if process.kind == "processor":
            self._to_handlers(took[Step.ASKED])
        elif process.kind == "handler":
            process.load -= took[Step.ASKED]
            self.share(self.log_workers, Step.ASKED, took[Step.ASKED])
        elif process.kind == "log worker":
            self._appended(process, took)

    def _again_or_sleep(self, process: _Process) -> None:
        if process.waiting:
            self._turn(process)
        else:
            process.awake = False
            self.cores.release(process)

    def _to_handlers(self, requests: int) -> None:
        """Hand batches to the handler that has least to do."""
        while requests:
            batch = min(requests, BATCH)
            requests -= batch
            handler = min(self.handlers, key=lambda one: one.load)
            handler.load += batch
            self.give(handler, Step.ASKED, batch)

    def _appended(self, log_worker: _Process, took: Sequence[int]) -> None:
        done = took[Step.DURABLE]
        if not self.costs.disk_us:
            done += took[Step.ASKED]
        elif took[Step.ASKED]:
            self.give(self.flushers[self.log_workers.index(log_worker)], Step.ASKED, took[Step.ASKED])
        if done:
            self.share(self.processors, Step.ANSWERED, done)

    def _round(self, flusher: _Process, requests: int, part: int) -> None:
        """Work on a part of a commit round."""

        def end() -> None:
            if part == ROUND_PARTS:
                flusher.resume = lambda: self._turn(flusher)
                self._again_or_sleep(flusher)
                log_worker = self.log_workers[self.flushers.index(flusher)]
                self.give(log_worker, Step.DURABLE, requests)
                return
            flusher.resume = lambda: self._round(flusher, requests, part + 1)
            self.cores.release(flusher)
            slower = max(self.setup.log_workers / OVERLAP, 1.0)
            wait_us = slower * self.costs.disk_us / (ROUND_PARTS - 1)
            self.cores.after(self._drawn(wait_us), lambda: self.cores.wake(flusher))

        work_us = self._drawn(self.costs.round_us / ROUND_PARTS)
        if part == 1:
            work_us += self._apart_us(requests, self.costs.gather_us)
        self.cores.after(work_us, end)


def play(costs: Costs, setup: Setup) -> Played:
    """Return what so many connections get that send their next request when one is answered."""
    game = _Game(costs, setup)
    game.begin()
    while game.answered < WARM_UP * setup.connections:
        game.cores.step()
    began, before, turns = game.cores.now, game.answered, dict(game.turns)
    end = before + max(MEASURED * setup.connections, ANSWERS)
    while game.answered < end:
        game.cores.step()
    answers = game.answered - before
    found = {kind: (count - turns.get(kind, 0)) / answers for kind, count in game.turns.items()}
    return Played(1e6 * answers / (game.cores.now - began), found)
