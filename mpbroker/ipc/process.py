"""One process of the broker: its role, such as "handler 0", its memory, and the supervisor's orders to it.

Orders are words in shared memory, never queued messages: each process reads its own words on every wake-up
and obeys a new order. `orders` says run or stop. `fence_orders` is an order about another process, to be
obeyed and then acknowledged. A fence says that the process of a role has died: drop all state about it. Some
fences come in stages with numbers, so that dependent steps run in sequence. A welcome (stage 0) says that a
successor has taken over the role: bind its rings again. The other orders are `LEAVING` (the role's process
will leave the running broker: send it nothing new) and `SETTINGS_CHANGED` (there is a new configuration).

A role is added to `roles` when all processes have acknowledged its welcome. A process that starts later finds
the role there and gets no welcome for it. Handlers and acceptors are in `roles` from their launch on, because
they count as readers of a bulletin before they are ready (`is_ready`). They too are welcomed when ready.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import MAX_LISTENERS
from mpbroker.ipc import settings, titles
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.listeners import AddedListener, ListenerCount, ListenerState
from mpbroker.ipc.log_levels import logger_of
from mpbroker.ipc.session import Session, Sessions
from mpbroker.ipc.slots import Request
from mpbroker.ipc.topology import PROCESSES, SUPERVISOR, SharedMemory, is_control_plane, name_of
from shm import linux
from shm.counters import CounterPage
from shm.doorbell import Doorbell

# The longest sleep of a process that has work under way.
MAX_SLEEP_MS = 300
# The longest sleep of a process that only waits for others. Each new descriptor or order rings its bell, and
# so does the fence of a producer that was killed between publishing and ringing. The time is shorter than the
# supervisor's tick (hangs.TICK_S), so that the heartbeat moves in each tick.
IDLE_SLEEP_MS = 900
# Stages after a log worker's death. 1: handlers close the requests under way with it, and pause. 2: the other
# log workers finish all they have. 3: handlers answer the requests that these workers have finished. 4: the
# processors do their part. 5: handlers continue.
LOG_FENCE_CLOSE, LOG_FENCE_FINISH, LOG_FENCE_ANSWER, LOG_FENCE_RESUME = 1, 2, 3, 5
# The stage of an order that reports no death: the role will leave, and gets nothing new from now on.
LEAVING = 255
# The same for a listener, whose number replaces the role: it is removed, so close its connections.
LISTENER_REMOVED = 254
# The configuration has changed: apply it (`follow_settings`).
SETTINGS_CHANGED = 253
CALL_NUMBER_MAX = 0xFFFFFFFF
# One process may make this many calls before its numbers are those of its successor.
INCARNATION_SHIFT = 20


class Order(IntEnum):
    RUN = 0
    STOP = 1


class State(IntEnum):
    """The state of a process. The process writes it into its own word of `states`."""

    STARTING = 0
    READY = 1
    STOPPED = 2


class ExitCode(IntEnum):
    """The exit status of a child of the supervisor. After any other status the process is restarted."""

    STOPPED = 0
    # stops the broker: restarting cannot help (configuration, damaged or foreign data, no log directory left)
    FATAL = 3


# The exit status of a wrong request, which asking again does not help.
WRONG_CALL = 2
# Statuses of a broker that another one has taken over. It starts again as the other's standby, or ends as one
# whose settings are wrong: the service manager must not try again.
EXIT_STANDBY = 10
EXIT_TAKEN_OVER = WRONG_CALL
# The longest time for which the tier brings the last changes into the object store, in a clean stop.
HAND_OVER_S = 60.0


class FatalError(Exception):
    """An error that stops the whole broker.

    The message names the problem, its place and the remedy. `status` is the broker's exit status. (Kafka:
    FatalExitError.)
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class PeerOrder:
    """An order of the supervisor: without flags, to fence process `role`; `stage` is the step of the fence.

    With `alive` it is the order to welcome process `role`. Obey it even if the process has died meanwhile:
    an order to fence the process follows. The other flags are `leaving`, `listener_removed` and
    `settings_changed`.
    """

    role: int
    stage: int
    alive: bool
    leaving: bool = False  # neither: the role lives, and is about to leave
    listener_removed: bool = False  # `role` is the number of a listener
    settings_changed: bool = False  # the order concerns no role


def pack_order(sequence: int, stage: int, role: int) -> int:
    return sequence << 16 | stage << 8 | role


class ProcessContext:
    """One process of the broker, with its memory, configuration and orders. The supervisor makes it."""

    def __init__(self, index: int, memory: SharedMemory, config: BrokerConfig, incarnation: int = 1) -> None:
        self.index = index
        self.name = name_of(index)
        self.memory = memory
        self.config = config
        self.incarnation = incarnation
        self.counters: CounterPage = memory.counters(index)
        self.bell: Doorbell = memory.doorbell(index)
        self.log = logging.getLogger(logger_of(index))
        self._bells = {i: memory.doorbell(i) for i in range(PROCESSES)}
        self._orders = memory.words("orders")
        self._states = memory.words("states")
        self._fence_orders = memory.words("fence_orders")
        self._fence_acks = memory.words("fence_acks")
        self._roles = memory.words("roles")
        self._sessions: dict[int, Sessions] = {}
        self._added: dict[int, AddedListener] = {}
        self._fence_seen = self._fence_orders.load(index)
        # The supervisor has died. Deaths are no longer handled, so answers of others may never come.
        self.orphaned = False

    def terminate(self) -> None:
        """Make `must_stop` return True, because the supervisor has died."""
        self.orphaned = True

    def call_numbers(self) -> Iterator[int]:
        """Yield numbers (32 bits) for calls. Processes that had this role before have used other numbers.

        So an answer to a predecessor cannot be mistaken for an answer to this process.
        """
        first = self.incarnation << INCARNATION_SHIFT
        return ((first + number) & CALL_NUMBER_MAX for number in itertools.count(1))

    def ready(self) -> None:
        """Report to the supervisor that this process is ready to serve."""
        # Heartbeats are judged from then on.
        self.counters.beat()
        self.counters.set(Counter.COUNT_STARTED_NS, time.monotonic_ns())
        self._states.store(self.index, State.READY)
        self.ring(SUPERVISOR)

    def stopped(self) -> None:
        self.counters.set(Counter.COUNT_STARTED_NS, 0)
        self._states.store(self.index, State.STOPPED)
        self.ring(SUPERVISOR)

    def fatal(self, status: int) -> None:
        """Write the broker's exit status for the supervisor. Call it before exiting with ExitCode.FATAL."""
        self.memory.words("fatal").store(self.index, status)

    def must_stop(self) -> bool:
        return self.orphaned or self._orders.load(self.index) == Order.STOP

    def is_alive(self, role: int) -> bool:
        """Return whether the role has a process now, according to the supervisor."""
        return self._roles.load(role) != 0

    def incarnations(self, first: int, count: int) -> tuple[int, ...]:
        """Return `incarnation_of` for `count` roles from `first` on."""
        return self._roles.load_some(first, count)

    def is_ready(self, role: int) -> bool:
        """Return whether the role has a process that is ready to serve.

        If the process is still starting, an order to welcome it follows.
        """
        return self.is_alive(role) and self._states.load(role) == State.READY

    def incarnation_of(self, role: int) -> int:
        """Return the number of the role's incarnation, which grows with each restart; 0 without a process."""
        return self._roles.load(role)

    def pending_order(self) -> PeerOrder | None:
        """Return an order that is not acknowledged yet, or None. Obey it, then call `acknowledge_order`."""
        order = self._fence_orders.load(self.index)
        if order == self._fence_seen:
            return None
        role, stage = order & 0xFF, order >> 8 & 0xFF
        return PeerOrder(
            role,
            stage,
            alive=stage == 0,
            leaving=stage == LEAVING,
            listener_removed=stage == LISTENER_REMOVED,
            settings_changed=stage == SETTINGS_CHANGED,
        )

    def order_words(self) -> list[memoryview]:
        """Return the words that change with each order to this process, for native code to watch."""
        at = 8 * self.index
        return [self.memory.private.block(name)[at : at + 8] for name in ("orders", "fence_orders")]

    def acknowledge_order(self) -> None:
        self._fence_seen = self._fence_orders.load(self.index)
        self._fence_acks.store(self.index, self._fence_seen)
        self.ring(SUPERVISOR)

    def obey_settings(self) -> None:
        """Acknowledge the pending order, if any; obey it only if it tells of a changed configuration."""
        if (order := self.pending_order()) is not None:
            if order.settings_changed:
                self.follow_settings()
            self.acknowledge_order()

    def follow_settings(self) -> None:
        """Adopt the configuration that the supervisor has published.

        The caller must update any state that it has derived from the earlier configuration.
        """
        settings.adopt(self.memory.private.block("settings"), self.config)
        self._added.clear()

    def session(self, request: Request) -> Session:
        """Return the session of the connection of `request`. This process must hold the request.

        Raises session.SessionGone if the processor no longer serves the connection.
        """
        sessions = self._sessions.get(request.processor)
        if sessions is None:
            sessions = self._sessions[request.processor] = self.memory.sessions(request.processor)
        return sessions.of(request.channel, request.connection)

    def listener(self, number: int) -> AddedListener:
        """Return the listener with this number, configured or added later. Raises LookupError."""
        known = self._added.get(number)
        if known is None:
            if number < len(self.config.listeners):
                listener = self.config.listeners[number]
                advertised = {one.name: one for one in self.config.advertised_listeners or ()}
                known = AddedListener(listener, advertised.get(listener.name))
            else:
                known = self.memory.listeners().get(number)
            self._added[number] = known
        return known

    def whose(self, request: Request, session: Session | None = None) -> str:
        """Return a text for the log that names the connection and the listener of a request.

        `session` is the connection's session, if the caller has it already.
        """
        try:
            connection = (session or self.session(request)).connection_id
            return f"connection {connection} on {self.listener(request.listener).listener.name}"
        except LookupError:
            # The connection or its listener is closed, which may be why this is to be logged.
            return f"connection {request.connection:x}"

    def entitle(self, about: str) -> None:
        """Set the title that ps shows for this process: the name of its role, then `about`."""
        titles.entitle(f"{self.name} {about}")

    def entitle_by_listeners(self) -> None:
        """Put the names of the accepting listeners of this process's plane into its title.

        Call it when listeners change.
        """
        control = is_control_plane(self.index)
        found = [self.memory.listener_counts(number) for number in range(MAX_LISTENERS)]
        served = [one for one in found if one.get(ListenerCount.STATE) == ListenerState.ACCEPTING]
        names = [one.name for one in served if bool(one.get(ListenerCount.CONTROL_PLANE)) == control]
        self.entitle(",".join(names))

    def ring(self, index: int) -> None:
        """Wake the process with this index if it sleeps. Call it once for all that you have published."""
        self._bells[index].ring()

    def wait(self, something_waits: Callable[[], bool], timeout_ms: int = MAX_SLEEP_MS) -> None:
        """Sleep until the bell rings or `something_waits()`, at most min(`timeout_ms`, IDLE_SLEEP_MS)."""
        self.counters.beat()
        self.bell.wait(min(timeout_ms, IDLE_SLEEP_MS), something_waits)


def die_with_parent(parent_pid: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent dies; at once if the parent is dead."""
    linux.set_parent_death_signal(by)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), by)


def readable(fd: int, timeout_ms: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))
