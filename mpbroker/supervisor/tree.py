"""The process tree, in one thread: starts roles, mends deaths through the fence, resizes, stops."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import ExitCode, FatalError, Order, ProcessContext, State, pack_fence
from mpbroker.ipc.topology import SharedMemory, name_of
from mpbroker.supervisor import plans
from mpbroker.supervisor.child import Child, fork_child

# A child gets this long to answer an order or to stop before it is killed; recovery of the log has no limit.
ACKNOWLEDGE_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
READY_TIMEOUT_S = 60.0
TICK_MS = 1000
# How long to sleep at most while something is under way; who is waited for rings.
STARTING_TICK_MS = 100
ACKNOWLEDGE_TICK_MS = 50
STOPPING_TICK_MS = 50
RESIZE_FACTOR = 2


class BrokerStops(Exception):
    """The broker must end; `code` is the exit status, the message says why."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class Tree:
    """All children of one broker. `shared_fds`: what every child keeps open besides its own."""

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
        self._stopping = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self.on_wait: Callable[[], None] | None = None  # called after every sleep; may raise BrokerStops

    # ---- what the main loop waits for

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Calls back when `fd` is readable, from `step` only."""
        self._callbacks[fd] = callback
        self.poll.register(fd, select.EPOLLIN)

    def step(self, timeout_ms: int = TICK_MS) -> None:
        """Waits for something to happen and looks after it. Raises BrokerStops."""
        for callback in self._wait(timeout_ms, self._something_to_do):
            callback()
        self._look_after()

    def _wait(self, timeout_ms: int, nothing_to_wait_for: Callable[[], bool]) -> list[Callable[[], None]]:
        """Sleeps; notices deaths at once; returns the callbacks of other descriptors that are readable."""
        due_s = [child.restart_at - time.monotonic() for child in self.children.values() if child.restart_at]
        self.bell.arm()
        try:
            sleep_s = 0 if nothing_to_wait_for() else max(0, min([timeout_ms / 1000, *due_s]))
            events = self.poll.poll(sleep_s)
        finally:
            self.bell.disarm()
        self.counters.beat()
        if self.on_wait is not None:
            self.on_wait()
        ready = []
        for fd, _ in events:
            if fd == self.bell.fd:
                self.bell.drain()
            elif fd in self._callbacks:
                ready.append(self._callbacks[fd])
            else:
                self._reap(fd)
        return ready

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
                self.launch(child)
            elif self._has_started(child):
                self._introduce(child)
            elif child.pid and not child.serves:
                self._judge_start(child)

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
            raise BrokerStops(1, f"the {child.name} process cannot go on; its message above says why")
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
        child.incarnation += 1
        child.restart_at = None
        child.ready_by = time.monotonic() + READY_TIMEOUT_S
        # The log process looks at orders only when it has recovered, which may take long.
        child.hears = child.role != topology.LOG
        child.missed.clear()
        self._states.store(child.role, State.STARTING)
        self._orders.store(child.role, Order.RUN)
        if topology.is_handler(child.role):
            # It reads the bulletin before it is ready, and must count as a reader by then.
            self._roles.store(child.role, child.incarnation)
        context = ProcessContext(child.role, self.memory, self.config, child.incarnation)
        context.counters.clear()
        fork_child(child, context, ())
        self.poll.register(child.pidfd, select.EPOLLIN)
        self._order_all(plans.needed_to_start(child.role), plans.WELCOME, child.role)

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
            self._order_all((child.role,), stage, about)
        self._order_all(plans.peers_of(child.role), plans.WELCOME, child.role)
        if not child.pid:
            return  # it died meanwhile, and will be fenced
        self._roles.store(child.role, child.incarnation)
        child.serves = True
        self._wake(topology.ACCEPTOR)
        if child.died_at:
            took_ms = (time.monotonic() - child.died_at) * 1000
            self.log.info("%s was replaced (pid %d) in %d ms", child.name, child.pid, took_ms)

    def _judge_start(self, child: Child) -> None:
        """Who does not become ready in time is killed. Recovery of the log has no limit, and who starts
        meanwhile waits for it: also the coordinator, which has all partitions opened, and who needs what it
        announces then.
        """
        waited_for = [self.children.get(role) for role in (topology.LOG, topology.COORDINATOR)]
        if any(c is not None and c.pid and not c.serves and self._moves(c) for c in waited_for):
            child.ready_by = time.monotonic() + READY_TIMEOUT_S
        elif time.monotonic() > child.ready_by:
            self.log.error("%s is not ready after %d s: it is killed", child.name, READY_TIMEOUT_S)
            child.ready_by = float("inf")
            os.kill(child.pid, signal.SIGKILL)

    def _moves(self, child: Child) -> bool:
        """Whether it shows life, but for the time that recovery may take without a sign of it."""
        turns = self.memory.counters(child.role).turns
        if turns != child.last_turns:
            child.last_turns, child.moved_at = turns, time.monotonic()
        return child.role == topology.LOG or time.monotonic() - child.moved_at < READY_TIMEOUT_S

    # ---- orders and fences

    def _wake(self, role: int) -> None:
        """Whether it sleeps or not: one on its way from a look at its orders to sleep would not be rung."""
        os.eventfd_write(self.memory.bell_fds[role], 1)

    def _order(self, child: Child, stage: int, about: int) -> int:
        self._fence_sequence += 1
        order = pack_fence(self._fence_sequence, stage, about)
        self._fence_orders.store(child.role, order)
        self._wake(child.role)
        return order

    def _order_all(self, roles: tuple[int, ...], stage: int, about: int) -> None:
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

        deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        turns = -1
        while late := owing():
            if time.monotonic() > deadline:
                before, turns = turns, self.memory.counters(topology.LOG).turns
                # The log process may be at something long, such as opening all partitions.
                stuck = [child for child in late if child.role != topology.LOG or turns == before]
                for child in stuck:
                    self.log.error(
                        "%s does not acknowledge that %s changed: it is killed", child.name, name_of(about)
                    )
                    os.kill(child.pid, signal.SIGKILL)
                deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
            self._wait(ACKNOWLEDGE_TICK_MS, lambda: not owing())

    def _fence(self, role: int) -> None:
        """Every peer drops what is left of the role; then its rings, words and arena are as new."""
        for stage, members in enumerate(plans.stages_of(role), start=1):
            self._order_all(members, stage, role)
        if role == topology.ACCEPTOR:
            return
        self.memory.reset_rings_of(role)
        self.memory.arena(role).reset()
        if topology.is_handler(role):
            self.memory.words("heavy").store(role - topology.FIRST_HANDLER, 0)
        self.memory.words("queued").store(role, 0)

    def _mend(self, child: Child) -> None:
        """Fences the dead and launches its successor, now or after a while."""
        if self._stopping or child.role not in self.children:
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
            self.launch(child)
            return
        self.log.warning(
            "%s starts again in %d ms (death %d in a row)", child.name, delay_ms, child.restarts.young_deaths
        )
        child.restart_at = time.monotonic() + delay_ms / 1000

    # ---- hangs

    def judge_heartbeats(self) -> None:
        """Kills a child whose turn counter has not moved for handler.hang.timeout.ms; called once per tick.

        Counted in our own ticks, so that a suspended machine or supervisor does not make everybody look hung.
        """
        limit = max(1, self.config.handler_hang_timeout_ms // TICK_MS)
        for child in self.children.values():
            if not child.serves:
                continue
            turns = self.memory.counters(child.role).turns
            child.stale_ticks = child.stale_ticks + 1 if turns == child.last_turns else 0
            child.last_turns = turns
            if child.stale_ticks >= limit:
                self.log.error(
                    "%s (pid %d) has not moved for %d s: it is killed",
                    child.name,
                    child.pid,
                    child.stale_ticks,
                )
                child.stale_ticks = 0
                os.kill(child.pid, signal.SIGKILL)

    # ---- stopping

    def retire(self, roles: list[int]) -> None:
        """Stops these children gracefully, all at once, and fences what they leave: to resize and to end."""
        for role in roles:
            self._orders.store(role, Order.STOP)
            self._wake(role)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        leaving = [self.children[r] for r in roles if self.children[r].pid]
        while leaving := [c for c in leaving if c.pid]:
            if time.monotonic() > deadline:
                for child in leaving:
                    self.log.error("%s does not stop within %d s: it is killed", child.name, STOP_TIMEOUT_S)
                    os.kill(child.pid, signal.SIGKILL)
                deadline = float("inf")
            self._wait(STOPPING_TICK_MS, lambda: False)
        for role in roles:
            child = self.children[role]
            if child in self._dead:
                self._dead.remove(child)
            self._fence(role)
            del self.children[role]

    def stop_all(self) -> None:
        """Graceful: what is under way is answered, then everything is flushed. Deaths meanwhile are final."""
        self._stopping = True
        present = sorted(self.children)
        for group in (
            [r for r in present if r == topology.ACCEPTOR],
            [r for r in present if topology.is_processor(r)],
            [r for r in present if topology.is_handler(r)],
            [r for r in present if r == topology.COORDINATOR],
        ):
            self.retire(group)
        if topology.LOG in self.children:
            self._orders.store(topology.LOG, Order.STOP)
            self._wake(topology.LOG)
            while self.children[topology.LOG].pid:
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

    # ---- resizing

    def resize(self, wanted: list[Child], present: list[int]) -> None:
        """Makes `wanted` the children of a kind, now `present`: starts what is new, retires the highest."""
        keep = {child.role for child in wanted}
        for child in wanted:
            if child.role not in self.children:
                self.start(child)
        self.retire([role for role in sorted(present, reverse=True) if role not in keep])


def check_resize(kind: str, old: int, new: int, most: int) -> None:
    """Kafka's rule for dynamic thread counts: at least one, half to double. Raises FatalError."""
    if new < 1 or new > most:
        raise FatalError(f"cannot resize {kind} to {new}: the number must lie in 1..{most}")
    if new < old // RESIZE_FACTOR or new > old * RESIZE_FACTOR:
        raise FatalError(
            f"cannot resize {kind} from {old} to {new}: one step goes from half ({old // 2}) "
            f"to double ({old * 2})"
        )
