"""The process tree, in one thread: starts, restarts, retires and stops the processes of all roles.

A fence makes all other processes release the state of a dead role. A doorbell is an eventfd that wakes a
role's process. Rings are queues in shared memory.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.hangs import (
    EXPORTER_DIVISOR,
    HANG_TICKS_MIN,
    HEAVY_TIMEOUTS,
    TICK_S,
    Patience,
    Pulse,
    Verdict,
    look_at,
)
from mpbroker.ipc.process import HAND_OVER_S, LEAVING, ExitCode, Order, ProcessContext, State, pack_order
from mpbroker.ipc.topology import SharedMemory, name_of
from mpbroker.supervisor import plans
from mpbroker.supervisor.child import LONGEST_DELAY_MS, Child, abandon, fork_child
from mpbroker.supervisor.system_limits import advice

# Time for a child to answer an order or to stop before it is killed. Recovery of the log has no limit.
ACKNOWLEDGE_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
# A child that leaves a running broker waits for slow clients to receive their responses.
LEAVE_TIMEOUT_S = 90.0
READY_TIMEOUT_S = 60.0
RELAUNCH_S = 1.0
TICK_MS = round(TICK_S * 1000)
# The tier stops last, and brings what is then on disk into the object store.
TIER_STOP_TIMEOUT_S = STOP_TIMEOUT_S + HAND_OVER_S
# They stop after all who serve clients, at the same time.
BACKGROUND = (topology.COORDINATOR, topology.CLEANER, topology.SCRUBBER)
# The longest sleeps while something is under way; the process waited for rings.
STARTING_TICK_MS = 100
ACKNOWLEDGE_TICK_MS = 50
STOPPING_TICK_MS = 50
# Counters of a worker's page that describe the moment, not the sum so far.
OF_THE_MOMENT = (
    *(Counter.COUNT_STARTED_NS, Counter.COUNT_ARENA_BYTES, Counter.COUNT_QUEUED_REQUESTS),
    *(Counter.COUNT_RESPONSES_WAITING, Counter.COUNT_FETCHES_DELAYED, Counter.COUNT_FETCHES_WATCHED),
    *(Counter.COUNT_CALLS_DELAYED, Counter.COUNT_THROTTLED_PRODUCE, Counter.COUNT_THROTTLED_FETCH),
    *(Counter.COUNT_THROTTLED_REQUEST, Counter.COUNT_THROTTLED_MUTATION),
)


class BrokerStops(Exception):
    """The broker must end. `code` is the exit status. The message is the reason."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class Tree:
    """All children of one broker, by role. A role has at most one process."""

    def __init__(self, memory: SharedMemory, config: BrokerConfig) -> None:
        self.memory = memory
        self.config = config
        self.log = logging.getLogger("mpbroker.supervisor")
        self.children: dict[int, Child] = {}
        self.bell = memory.doorbell(topology.SUPERVISOR)
        self.counters = memory.counters(topology.SUPERVISOR)
        self.poll = select.epoll()
        self.poll.register(self.bell.fd, select.EPOLLIN)
        self._roles = memory.words("roles")
        self._orders = memory.words("orders")
        self._states = memory.words("states")
        self._pids = memory.words("pids")
        self._pids.store(topology.SUPERVISOR, os.getpid())
        self._fence_orders = memory.words("fence_orders")
        self._fence_acks = memory.words("fence_acks")
        self._fence_sequence = 0
        self._dead: deque[Child] = deque()
        self._lives: dict[int, int] = {}
        self._stopping = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._tick = Patience(TICK_S)
        self.on_left: Callable[[int], None] | None = None  # called when a role has left for good
        self.on_wait: Callable[[], None] | None = None  # called after every sleep; may raise BrokerStops

    # ---- the main loop's waiting

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is readable, also while the tree waits for something else.

        Therefore the callback may read and record requests, but must not change the tree.
        """
        self._callbacks[fd] = callback
        self.poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        del self._callbacks[fd]
        self.poll.unregister(fd)

    def step(self, timeout_ms: int = TICK_MS) -> None:
        """Wait up to `timeout_ms` for an event, such as a death, and handle it. Raises BrokerStops."""
        self._wait(timeout_ms, self._something_to_do)
        self._advance()

    def _wait(self, timeout_ms: int, must_not_sleep: Callable[[], bool]) -> None:
        """Sleep up to `timeout_ms`; record deaths, call callbacks of readable fds, kill hung processes."""
        # Nothing is restarted while the broker stops.
        waiting = [] if self._stopping else [child for child in self.children.values() if child.restart_at]
        due_s = [child.restart_at - time.monotonic() for child in waiting if child.restart_at]
        self.bell.arm()
        try:
            sleep_s = 0 if must_not_sleep() else max(0, min([timeout_ms / 1000, *due_s]))
            events = self.poll.poll(sleep_s)
        finally:
            self.bell.disarm()
        self.counters.beat()
        if self.on_wait is not None:
            self.on_wait()
        for fd, _ in events:
            if fd == self.bell.fd:
                self.bell.drain()
            elif fd in self._callbacks:
                self._callbacks[fd]()
            elif any(child.pidfd == fd for child in self.children.values()):
                self._reap(fd)
        if self._tick.is_over():
            self._tick.renew()
            self.judge_heartbeats()

    def _something_to_do(self) -> bool:
        return bool(self._dead) or any(map(self._has_started, self.children.values()))

    def _advance(self) -> None:
        """Fence and restart dead roles, start roles that are due, and introduce ready roles to their peers.

        This does not wait for a role to start, because the start may need another role that has just died.
        """
        while self._dead:
            self._on_death(self._dead.popleft())
        for child in list(self.children.values()):
            if child.restart_at is not None and child.restart_at <= time.monotonic():
                self.relaunch(child)
            elif self._has_started(child):
                self._on_ready(child)
            elif child.pid and not child.serves:
                self._judge_start(child)
            elif child.pid and child.leaves_by is not None and child.leaves_by.is_over():
                self._hasten(child)

    def _reap(self, pidfd: int) -> None:
        child = next(c for c in self.children.values() if c.pidfd == pidfd)
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        pid, child.pid, child.pidfd = child.pid, 0, -1
        child.serves = child.hears = False
        child.died_at = time.monotonic()
        self._roles.store(child.role, 0)
        self._pids.store(child.role, 0)
        if code == ExitCode.FATAL:
            status = self.memory.words("fatal").load(child.role)
            raise BrokerStops(status, f"the {child.name} process cannot go on; its message above says why")
        if self._states.load(child.role) == State.STOPPED and code == ExitCode.STOPPED:
            self.log.debug("%s (pid %d) has stopped", child.name, pid)
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            self.log.warning("%s (pid %d) %s", child.name, pid, how)
        self._dead.append(child)

    # ---- starting

    def start(self, child: Child) -> None:
        """Fork a role's process and wait until it serves, or has died."""
        self.launch(child)
        self.await_serving(child)

    def launch(self, child: Child) -> None:
        self.children[child.role] = child
        # Count on for a role that was away for a while: connection ids contain the number and are never
        # reused.
        child.incarnation = self._lives[child.role] = self._lives.get(child.role, 0) + 1
        child.restart_at = child.leaves_by = None
        child.ready_by = Patience(READY_TIMEOUT_S)
        child.pulse = Pulse()
        # A log worker reads orders only after its recovery, which may take long.
        child.hears = not topology.is_log_worker(child.role)
        child.missed.clear()
        self._states.store(child.role, State.STARTING)
        self._orders.store(child.role, Order.RUN)
        if topology.is_handler(child.role) or child.role in (*topology.ACCEPTORS, topology.TIER):
            # It reads its bulletin before it is ready, and must count as a reader by then.
            self._roles.store(child.role, child.incarnation)
        # In this order: a peer that has not bound its rings refuses or loses its messages.
        self.order_all(plans.needed_to_start(child.role), plans.WELCOME, child.role)
        context = ProcessContext(child.role, self.memory, self.config, child.incarnation)
        context.counters.restart()
        try:
            fork_child(child, context)
            self._pids.store(child.role, child.pid)
            self.poll.register(child.pidfd, select.EPOLLIN)
        except OSError:
            abandon(child)
            self._roles.store(child.role, 0)
            self._pids.store(child.role, 0)
            raise

    def relaunch(self, child: Child) -> None:
        """Launch a role's process. If the system cannot create it, retry after RELAUNCH_S."""
        try:
            self.launch(child)
        except OSError as error:
            self.log.error("cannot start %s: %s%s; retrying", child.name, error, advice(error))
            child.restart_at = time.monotonic() + RELAUNCH_S

    def await_serving(self, child: Child) -> None:
        self.await_true(lambda: not child.pid or child.serves)

    def await_true(self, is_there: Callable[[], bool]) -> None:
        """Wait until `is_there()` holds, while the broker starts. Raises BrokerStops."""
        while not is_there():
            self._wait(STARTING_TICK_MS, self._something_to_do)
            self._advance()

    def _has_started(self, child: Child) -> bool:
        return bool(child.pid) and not child.serves and self._states.load(child.role) == State.READY

    def _on_ready(self, child: Child) -> None:
        """Give a ready role the orders that it missed, and order its peers to bind its rings (queues)."""
        child.hears = True
        for stage, about in child.missed:
            self.order_all((child.role,), stage, about)
        for leaving in [c.role for c in self.children.values() if c.leaves_by is not None]:
            if child.role in plans.givers_of(leaving):
                self.order_all((child.role,), LEAVING, leaving)
        self.order_all(plans.peers_of(child.role), plans.WELCOME, child.role)
        if not child.pid:
            return  # the process died meanwhile, and will be fenced
        self._roles.store(child.role, child.incarnation)
        child.serves = True
        self._wake_acceptors()
        if child.died_at:
            took_ms = (time.monotonic() - child.died_at) * 1000
            self.log.info("%s was replaced (pid %d) in %d ms", child.name, child.pid, took_ms)

    def _judge_start(self, child: Child) -> None:
        """Kill a process that does not become ready in time.

        Log recovery has no time limit while it makes progress. Other roles' limits begin after recovery: the
        coordinator needs all partitions, and other roles need the coordinator's bulletins.
        """
        waited_for = [self.children.get(role) for role in (*topology.LOG_WORKERS, topology.COORDINATOR)]
        if any(c is not None and c.pid and not c.serves and self._moves(c) for c in waited_for):
            child.ready_by.renew()
        elif child.ready_by.is_over():
            self.log.error("%s is not ready after %d s: it is killed", child.name, child.ready_by.limit_s)
            child.ready_by = Patience(float("inf"))
            os.kill(child.pid, signal.SIGKILL)

    def _moves(self, child: Child) -> bool:
        """Return whether a starting process makes progress, or made some within READY_TIMEOUT_S."""
        turns = self.memory.counters(child.role).turns
        if turns != child.last_turns:
            child.last_turns = turns
            child.moves = Patience(READY_TIMEOUT_S)
        # A log worker that recovers is judged by its heartbeat.
        return topology.is_log_worker(child.role) or not child.moves.is_over()

    # ---- orders and fences

    def _wake(self, role: int) -> None:
        """Ring a role's doorbell (an eventfd), even if its process is awake.

        The process may have read its orders already and be about to sleep.
        """
        os.eventfd_write(self.memory.bell_fds[role], 1)

    def _wake_acceptors(self) -> None:
        """Ring the acceptors' doorbells.

        The acceptors then read which processors serve, and which processors' connections must be closed.
        """
        for role in topology.ACCEPTORS:
            self._wake(role)

    def _order(self, child: Child, stage: int, about: int) -> int:
        self._fence_sequence += 1
        order = pack_order(self._fence_sequence, stage, about)
        self._fence_orders.store(child.role, order)
        self._wake(child.role)
        return order

    def order(self, role: int, stage: int, about: int) -> None:
        """Order a role, if it has a process, to handle a change of the role `about`. Do not wait."""
        child = self.children.get(role)
        if child is not None and child.pid:
            self._order(child, stage, about)

    def order_all(self, roles: tuple[int, ...], stage: int, about: int) -> None:
        """Order the live roles of `roles` to handle `about`; wait until each has acknowledged or died.

        `about` is a role that changed, or a listener's number. A role that does not read orders yet gets the
        order later.
        """
        given: dict[int, int] = {}
        for child in [c for r in roles if (c := self.children.get(r)) is not None and c.pid]:
            if child.hears:
                given[child.role] = self._order(child, stage, about)
            else:
                child.missed.append((stage, about))

        def owing() -> list[Child]:
            ordered = [self.children[role] for role in given]
            return [c for c in ordered if c.pid and self._fence_acks.load(c.role) != given[c.role]]

        patience = Patience(STOP_TIMEOUT_S if self._stopping else ACKNOWLEDGE_TIMEOUT_S)
        turns: dict[int, int] = {}
        while late := owing():
            if patience.is_over():
                # A log worker may be busy for long, such as with opening all partitions, and a handler with a
                # heavy request. If they hang, their heartbeat shows it.
                for child in late:
                    before = turns.get(child.role, -1)
                    turns[child.role] = self.memory.counters(child.role).turns
                    if topology.is_log_worker(child.role) and turns[child.role] != before:
                        continue
                    if self._has_heavy_work(child) and not self._stopping:
                        continue
                    self.log.error(
                        "%s does not acknowledge that %s changed: it is killed", child.name, name_of(about)
                    )
                    os.kill(child.pid, signal.SIGKILL)
                patience.renew()
            self._wait(ACKNOWLEDGE_TICK_MS, lambda: not owing())

    def _fence(self, role: int) -> None:
        """Order every peer to release the state of a dead role; then reset the role's shared memory.

        A handler pauses from an early stage of a log worker's fence to a later one. It would resume early if
        a log worker were introduced to it; so no role is introduced to its peers between two stages.
        """
        for stage, members in enumerate(plans.stages_of(role), start=1):
            self.order_all(members, stage, role)
        if role in topology.ALONE:
            return
        if topology.is_processor(role):
            self.memory.connections(role).clear()
            self._wake_acceptors()
        self.memory.reset_rings_of(role)
        self.memory.arena(role).reset()
        if topology.is_handler(role):
            for name in ("heavy", "replies_out"):
                self.memory.words(name).store(role - topology.FIRST_HANDLER, 0)
        self.memory.words("queued").store(role, 0)

    def _on_death(self, child: Child) -> None:
        """Fence a dead role (`_fence`) and launch its successor, after the delay of its RestartPolicy."""
        if self._stopping or child.role not in self.children:
            return
        if child.leaves_by is not None:
            self._has_left(child)
            return
        self._fence(child.role)
        self.counters.add(Counter.COUNT_FENCES)
        delay_ms = child.restarts.died((child.died_at - child.started) * 1000)
        if delay_ms is None and child.role in (topology.EXPORTER, topology.TIER):
            delay_ms = LONGEST_DELAY_MS  # clients are served also without them
        if delay_ms is None:
            raise BrokerStops(
                1,
                f"the {child.name} process died {child.restarts.young_deaths} times in a row right after its "
                "start; its messages above say why. The broker stops",
            )
        self.counters.add(Counter.COUNT_RESTARTS)
        if not delay_ms:
            self.relaunch(child)
            return
        self.log.warning(
            "%s starts again in %d ms (death %d in a row)", child.name, delay_ms, child.restarts.young_deaths
        )
        child.restart_at = time.monotonic() + delay_ms / 1000

    # ---- hangs

    def judge_heartbeats(self) -> None:
        """Kill the processes that hang, by the judgement of the module `hangs`.

        `_wait` calls this once per tick.
        """
        if self._stopping:
            return  # a stop has its own limits, and log workers flush without one
        for child in self.children.values():
            if not child.pid or not (child.serves or self._recovers(child)):
                continue
            limit, working_limit = self._hang_limits(child)
            turns = self.memory.counters(child.role).turns
            verdict = child.pulse.judge(turns, limit, working_limit, partial(look_at, child.pid))
            silent = (child.name, child.pid, child.pulse.silent_ticks * TICK_S)
            if verdict is Verdict.HANGS:
                self.log.error("%s (pid %d) has not moved for %d s: it is killed", *silent)
                child.pulse = Pulse()
                os.kill(child.pid, signal.SIGKILL)
            elif verdict is Verdict.WAITS_FOR_DISK and child.pulse.silent_ticks == limit:
                text = "%s (pid %d) has waited for its disk for %d s; nothing can end that but the disk"
                self.log.warning(text, *silent)

    def _hang_limits(self, child: Child) -> tuple[int, float]:
        """Return how many ticks a child may be silent, and how many more while it uses the CPU."""
        limit = max(HANG_TICKS_MIN, self.config.handler_hang_timeout_ms // TICK_MS)
        if self._recovers(child):
            return HEAVY_TIMEOUTS * limit, float("inf")
        if child.role == topology.EXPORTER:
            part = max(HANG_TICKS_MIN, limit // EXPORTER_DIVISOR)
            return part, part
        return limit, HEAVY_TIMEOUTS * limit if self._has_heavy_work(child) else 0

    def _recovers(self, child: Child) -> bool:
        return topology.is_log_worker(child.role) and not child.serves

    def _has_heavy_work(self, child: Child) -> bool:
        if not topology.is_handler(child.role):
            return False
        return self.memory.words("heavy").load(child.role - topology.FIRST_HANDLER) != 0

    # ---- leaving and stopping

    def retire(self, roles: list[int]) -> None:
        """Begin to remove these roles from a running broker.

        Other roles first stop giving work to the leaving roles, so that the leaving roles can finish. Later
        calls of `step` delete the roles from `children` after their processes have ended.
        """
        for role in sorted(roles, reverse=True):
            if topology.is_processor(role):
                self._roles.store(role, 0)  # the acceptor gives it no more connections
            self.order_all(plans.givers_of(role), LEAVING, role)
            child = self.children[role]
            child.leaves_by = Patience(LEAVE_TIMEOUT_S)
            child.restart_at = None
            self._orders.store(role, Order.STOP)
            self._wake(role)
            if not child.pid and child not in self._dead:
                self._has_left(child)

    def _hasten(self, child: Child) -> None:
        assert child.leaves_by is not None
        self.log.error("%s does not stop within %d s: it is killed", child.name, child.leaves_by.limit_s)
        child.leaves_by = Patience(float("inf"))
        os.kill(child.pid, signal.SIGKILL)

    def _has_left(self, child: Child) -> None:
        self._fence(child.role)
        self._correct_counters(child.role)
        del self.children[child.role]
        if self.on_left is not None:
            self.on_left(child.role)

    def _correct_counters(self, role: int) -> None:
        """Correct the counters of a role that has left without a successor.

        A process that was killed while it was leaving has not reset its gauges. After the role's fence no
        other process writes its counters.
        """
        page = self.memory.counters(role)
        page.set(Counter.COUNT_CONNECTIONS_CLOSED, page.get(Counter.COUNT_CONNECTIONS_CREATED))
        for counter in OF_THE_MOMENT:
            page.set(counter, 0)

    def _stop_now(self, roles: list[int], limit_s: float = STOP_TIMEOUT_S) -> None:
        """Stop these roles gracefully at the broker's end, all at the same time, and fence them."""
        for role in roles:
            self.children[role].leaves_by = Patience(limit_s)
            self._orders.store(role, Order.STOP)
            self._wake(role)
        while leaving := [c for role in roles if (c := self.children[role]).pid]:
            for child in leaving:
                if child.leaves_by is not None and child.leaves_by.is_over():
                    self._hasten(child)
            self._wait(STOPPING_TICK_MS, lambda: False)
        for role in roles:
            child = self.children[role]
            if child in self._dead:
                self._dead.remove(child)
            self._has_left(child)

    def stop_all(self) -> None:
        """Stop all roles gracefully: requests under way are answered, then all logs are flushed and copied.

        A role that dies during the stop is not restarted.
        """
        self._stopping = True
        present = sorted(self.children)
        for group in (
            [r for r in present if r == topology.ACCEPTOR],
            [r for r in present if r == topology.CONTROL_ACCEPTOR],
            [r for r in present if topology.is_processor(r)],
            [r for r in present if topology.is_handler(r)],
            [r for r in present if r in BACKGROUND],
        ):
            self._stop_now(group)
        # The first log worker stops last: it records what all of them have closed. Log workers have no limit
        # of time.
        for logs in ([r for r in present if topology.is_log_worker(r) and r != topology.LOG], [topology.LOG]):
            there = [self.children[role] for role in logs if role in self.children]
            for child in there:
                self._orders.store(child.role, Order.STOP)
                self._wake(child.role)
            while any(child.pid for child in there):
                self._wait(STOPPING_TICK_MS, lambda: False)
        self._stop_now([r for r in present if r == topology.TIER], TIER_STOP_TIMEOUT_S)
        # It serves the state of the broker to the last.
        self._stop_now([r for r in present if r == topology.EXPORTER])

    def kill_all(self) -> None:
        """Kill all children at once, by pid. The log recovers at the next start."""
        self._stopping = True
        for child in self.children.values():
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
        for child in self.children.values():
            if child.pid:
                os.waitpid(child.pid, 0)
                child.pid = 0
