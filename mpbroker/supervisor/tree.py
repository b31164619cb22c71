"""The process tree, in one thread: starts roles, mends deaths through the fence, resizes, stops."""

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
from mpbroker.ipc.hangs import HEAVY_TIMEOUTS, TICK_S, Patience, Pulse, Verdict, look_at
from mpbroker.ipc.process import LEAVING, ExitCode, Order, ProcessContext, State, pack_fence
from mpbroker.ipc.topology import SharedMemory, name_of
from mpbroker.supervisor import plans
from mpbroker.supervisor.child import Child, abandon, fork_child

# A child gets this long to answer an order or to stop before it is killed; recovery of the log has no limit.
ACKNOWLEDGE_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
# One that leaves a running broker waits for slow clients to take what it has for them.
LEAVE_TIMEOUT_S = 90.0
READY_TIMEOUT_S = 60.0
RELAUNCH_S = 1.0
TICK_MS = round(TICK_S * 1000)
# How long to sleep at most while something is under way; who is waited for rings.
STARTING_TICK_MS = 100
ACKNOWLEDGE_TICK_MS = 50
STOPPING_TICK_MS = 50
# What a worker's page says of now, and not of all its time.
OF_THE_MOMENT = (
    Counter.COUNT_STARTED_NS,
    Counter.COUNT_ARENA_BYTES,
    Counter.COUNT_QUEUED_REQUESTS,
    Counter.COUNT_RESPONSES_WAITING,
    Counter.COUNT_FETCHES_DELAYED,
    Counter.COUNT_FETCHES_WATCHED,
    Counter.COUNT_CALLS_DELAYED,
    Counter.COUNT_THROTTLED_PRODUCE,
    Counter.COUNT_THROTTLED_FETCH,
    Counter.COUNT_THROTTLED_REQUEST,
    Counter.COUNT_THROTTLED_MUTATION,
)


class BrokerStops(Exception):
    """The broker must end; `code` is the exit status, the message says why."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class Tree:
    """All children of one broker."""

    def __init__(self, memory: SharedMemory, config: BrokerConfig) -> None:
        self.memory = memory
        self.config = config
        self.log = logging.getLogger("mpbroker")
        self.children: dict[int, Child] = {}
        self.bell = memory.doorbell(topology.SUPERVISOR)
        self.counters = memory.counters(topology.SUPERVISOR)
        self.poll = select.epoll()
        self.poll.register(self.bell.fd, select.EPOLLIN)
        self._roles = memory.words("roles")
        self._orders = memory.words("orders")
        self._states = memory.words("states")
        self._fence_orders = memory.words("fence_orders")
        self._fence_acks = memory.words("fence_acks")
        self._fence_sequence = 0
        self._dead: deque[Child] = deque()
        self._lives: dict[int, int] = {}
        self._stopping = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._tick = Patience(TICK_S)
        self.on_left: Callable[[int], None] | None = None  # a role is gone, and nobody follows it
        self.on_wait: Callable[[], None] | None = None  # called after every sleep; may raise BrokerStops

    # ---- what the main loop waits for

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Calls back when `fd` is readable, whatever the tree waits for: so it may look and note, not
        change.
        """
        self._callbacks[fd] = callback
        self.poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        del self._callbacks[fd]
        self.poll.unregister(fd)

    def step(self, timeout_ms: int = TICK_MS) -> None:
        """Waits for something to happen and looks after it. Raises BrokerStops."""
        self._wait(timeout_ms, self._something_to_do)
        self._look_after()

    def _wait(self, timeout_ms: int, must_not_sleep: Callable[[], bool]) -> None:
        """Sleeps; notices deaths and hangs; calls back for other descriptors that are readable."""
        due_s = [child.restart_at - time.monotonic() for child in self.children.values() if child.restart_at]
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

    def _look_after(self) -> None:
        """Mends what died, starts what is due, introduces what has become ready.

        Never waits for a role to start: another may be needed for that, and it may just have died.
        """
        while self._dead:
            self._mend(self._dead.popleft())
        for child in list(self.children.values()):
            if child.restart_at is not None and child.restart_at <= time.monotonic():
                self.relaunch(child)
            elif self._has_started(child):
                self._introduce(child)
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
        """Forks the role and waits until it serves, or has died."""
        self.launch(child)
        self.await_serving(child)

    def launch(self, child: Child) -> None:
        self.children[child.role] = child
        # Also of a role that was away for a while: ids of connections are made of it, and never used again.
        child.incarnation = self._lives[child.role] = self._lives.get(child.role, 0) + 1
        child.restart_at = child.leaves_by = None
        child.ready_by = Patience(READY_TIMEOUT_S)
        child.pulse = Pulse()
        # A log worker looks at orders only when it has recovered, which may take long.
        child.hears = not topology.is_log_worker(child.role)
        child.missed.clear()
        self._states.store(child.role, State.STARTING)
        self._orders.store(child.role, Order.RUN)
        if topology.is_handler(child.role) or child.role in topology.ACCEPTORS:
            # It reads its bulletin before it is ready, and must count as a reader by then.
            self._roles.store(child.role, child.incarnation)
        context = ProcessContext(child.role, self.memory, self.config, child.incarnation)
        context.counters.restart()
        try:
            fork_child(child, context)
            self.poll.register(child.pidfd, select.EPOLLIN)
        except OSError:
            abandon(child)
            self._roles.store(child.role, 0)
            raise
        self.order_all(plans.needed_to_start(child.role), plans.WELCOME, child.role)

    def relaunch(self, child: Child) -> None:
        """A role that must not stay away: while the system has no process for it, it is tried again."""
        try:
            self.launch(child)
        except OSError as error:
            self.log.error("%s cannot be started, it is tried again: %s", child.name, error)
            child.restart_at = time.monotonic() + RELAUNCH_S

    def await_serving(self, child: Child) -> None:
        while child.pid and not child.serves:
            self._wait(STARTING_TICK_MS, self._something_to_do)
            self._look_after()

    def _has_started(self, child: Child) -> bool:
        return bool(child.pid) and not child.serves and self._states.load(child.role) == State.READY

    def _introduce(self, child: Child) -> None:
        """It is ready: tells it what it missed, and its peers that it is there."""
        child.hears = True
        for stage, about in child.missed:
            self.order_all((child.role,), stage, about)
        for leaving in [c.role for c in self.children.values() if c.leaves_by is not None]:
            if child.role in plans.givers_of(leaving):
                self.order_all((child.role,), LEAVING, leaving)
        self.order_all(plans.peers_of(child.role), plans.WELCOME, child.role)
        if not child.pid:
            return  # it died meanwhile, and will be fenced
        self._roles.store(child.role, child.incarnation)
        child.serves = True
        self._wake_acceptors()
        if child.died_at:
            took_ms = (time.monotonic() - child.died_at) * 1000
            self.log.info("%s was replaced (pid %d) in %d ms", child.name, child.pid, took_ms)

    def _judge_start(self, child: Child) -> None:
        """Who does not become ready in time is killed. Recovery of the log has no limit but that it goes on,
        and who starts meanwhile waits for it: also the coordinator, which has all partitions opened, and who
        needs what it announces then.
        """
        waited_for = [self.children.get(role) for role in (*topology.LOG_WORKERS, topology.COORDINATOR)]
        if any(c is not None and c.pid and not c.serves and self._moves(c) for c in waited_for):
            child.ready_by.renew()
        elif child.ready_by.is_over():
            self.log.error("%s is not ready after %d s: it is killed", child.name, child.ready_by.limit_s)
            child.ready_by = Patience(float("inf"))
            os.kill(child.pid, signal.SIGKILL)

    def _moves(self, child: Child) -> bool:
        """Whether it shows life, but for the time that a start may take without a sign of it."""
        turns = self.memory.counters(child.role).turns
        if turns != child.last_turns:
            child.last_turns = turns
            child.moves = Patience(READY_TIMEOUT_S)
        # A log worker that recovers is judged by its heartbeat.
        return topology.is_log_worker(child.role) or not child.moves.is_over()

    # ---- orders and fences

    def _wake(self, role: int) -> None:
        """Whether it sleeps or not: one on its way from a look at its orders to sleep would not be rung."""
        os.eventfd_write(self.memory.bell_fds[role], 1)

    def _wake_acceptors(self) -> None:
        """They look for themselves who serves, and whose connections are gone."""
        for role in topology.ACCEPTORS:
            self._wake(role)

    def _order(self, child: Child, stage: int, about: int) -> int:
        self._fence_sequence += 1
        order = pack_fence(self._fence_sequence, stage, about)
        self._fence_orders.store(child.role, order)
        self._wake(child.role)
        return order

    def order_all(self, roles: tuple[int, ...], stage: int, about: int) -> None:
        """Orders the live ones among `roles` to look at a role; waits until each has acknowledged or died.

        Who does not hear orders yet gets this one when it does.
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
                # A log worker may be at something long, such as opening all partitions, and a handler at a
                # heavy request; if they hang, their heartbeat tells.
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
        """Every peer drops what is left of the role; then its rings, words and arena are as new."""
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

    def _mend(self, child: Child) -> None:
        """Fences the dead and launches its successor, now or after a while."""
        if self._stopping or child.role not in self.children:
            return
        if child.leaves_by is not None:
            self._has_left(child)
            return
        self._fence(child.role)
        self.counters.add(Counter.COUNT_FENCES)
        delay_ms = child.restarts.died((child.died_at - child.started) * 1000)
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
        """Kills who hangs; `hangs` says what that means. Called once per tick, whatever the tree waits
        for.
        """
        if self._stopping:
            return  # that has its own limits, and log workers take what they need to flush
        limit = max(1, self.config.handler_hang_timeout_ms // TICK_MS)
        for child in self.children.values():
            recovers = topology.is_log_worker(child.role) and not child.serves
            if not child.pid or not (child.serves or recovers):
                continue
            working_limit = float("inf") if recovers else HEAVY_TIMEOUTS * limit
            verdict = child.pulse.judge(
                self.memory.counters(child.role).turns,
                HEAVY_TIMEOUTS * limit if recovers else limit,
                working_limit if recovers or self._has_heavy_work(child) else 0,
                partial(look_at, child.pid),
            )
            if verdict is Verdict.HANGS:
                self.log.error(
                    "%s (pid %d) has not moved for %d s: it is killed",
                    child.name,
                    child.pid,
                    child.pulse.silent_ticks * TICK_S,
                )
                child.pulse = Pulse()
                os.kill(child.pid, signal.SIGKILL)
            elif verdict is Verdict.WAITS_FOR_DISK and child.pulse.silent_ticks == limit:
                self.log.warning(
                    "%s (pid %d) has waited for its disk for %d s; nothing can end that but the disk",
                    child.name,
                    child.pid,
                    child.pulse.silent_ticks * TICK_S,
                )

    def _has_heavy_work(self, child: Child) -> bool:
        if not topology.is_handler(child.role):
            return False
        return self.memory.words("heavy").load(child.role - topology.FIRST_HANDLER) != 0

    # ---- leaving and stopping

    def retire(self, roles: list[int]) -> None:
        """Begins to take these out of a running broker; `step` goes on with it, and they are gone from
        `children` when it is done. Whoever gives them work gives them no more before they hear of it, so that
        they can finish what they have; nobody waits for that but they.
        """
        for role in sorted(roles, reverse=True):
            if topology.is_processor(role):
                self._roles.store(role, 0)  # by which the acceptor knows to whom it may give
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
        self._close_books(child.role)
        del self.children[child.role]
        if self.on_left is not None:
            self.on_left(child.role)

    def _close_books(self, role: int) -> None:
        """One that was killed while it left could not say that nothing waits with it any more, and has no
        successor who does. Behind its fence nobody else writes its page.
        """
        page = self.memory.counters(role)
        page.set(Counter.COUNT_CONNECTIONS_CLOSED, page.get(Counter.COUNT_CONNECTIONS_CREATED))
        for counter in OF_THE_MOMENT:
            page.set(counter, 0)

    def _stop_now(self, roles: list[int]) -> None:
        """The broker ends: stops these gracefully, all at once, and fences what they leave."""
        for role in roles:
            self.children[role].leaves_by = Patience(STOP_TIMEOUT_S)
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
        """Graceful: what is under way is answered, then everything is flushed. Deaths meanwhile are final."""
        self._stopping = True
        present = sorted(self.children)
        for group in (
            [r for r in present if r == topology.ACCEPTOR],
            [r for r in present if r == topology.CONTROL_ACCEPTOR],
            [r for r in present if topology.is_processor(r)],
            [r for r in present if topology.is_handler(r)],
            [r for r in present if r in (topology.COORDINATOR, topology.CLEANER, topology.SCRUBBER)],
        ):
            self._stop_now(group)
        # The first one last: it says what all of them have closed. They have no limit of time.
        for logs in ([r for r in present if topology.is_log_worker(r) and r != topology.LOG], [topology.LOG]):
            there = [self.children[role] for role in logs if role in self.children]
            for child in there:
                self._orders.store(child.role, Order.STOP)
                self._wake(child.role)
            while any(child.pid for child in there):
                self._wait(STOPPING_TICK_MS, lambda: False)

    def kill_all(self) -> None:
        """At once, by pid; the log recovers at the next start."""
        self._stopping = True
        for child in self.children.values():
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
        for child in self.children.values():
            if child.pid:
                os.waitpid(child.pid, 0)
                child.pid = 0
