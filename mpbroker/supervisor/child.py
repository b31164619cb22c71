"""Forks the process of a role: the descriptors that the child inherits, its signals, and its exit."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.ipc import topology
from mpbroker.ipc.hangs import Patience, Pulse
from mpbroker.ipc.process import ExitCode, FatalError, ProcessContext, die_with_parent
from mpbroker.ipc.topology import name_of
from mpbroker.supervisor import logs
from shm import procfs

# A child that lived this long was not in a restart loop.
HEALTHY_AFTER_MS = 2_000
FIRST_DELAY_MS = 50
LONGEST_DELAY_MS = 5_000
DEATHS_IN_A_ROW_MAX = 10
_OUR_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD),
    signal.SIGUSR1,
)
# The exporter has no work to finish, and keeps the port of HTTP from the next broker. The others stop by
# SIGTERM: they finish their writes, or send responses that exist already.
_KILLED_WITH_SUPERVISOR = (topology.EXPORTER,)
# A terminal sends these to the whole group; only the supervisor acts on them.
_OF_THE_SUPERVISOR = (signal.SIGINT, signal.SIGHUP)


@dataclass
class RestartPolicy:
    """The deaths of one role, and the delay until its next start.

    The delay doubles with each early death in a row. At `DEATHS_IN_A_ROW_MAX` early deaths, `died` gives up.
    """

    young_deaths: int = 0
    deaths: int = 0

    def died(self, lived_ms: float) -> int | None:
        """Return the restart delay in ms: 0 if the child had lived long enough, None to give up."""
        self.deaths += 1
        if lived_ms >= HEALTHY_AFTER_MS:
            self.young_deaths = 0
            return 0
        self.young_deaths += 1
        if self.young_deaths >= DEATHS_IN_A_ROW_MAX:
            return None
        return min(LONGEST_DELAY_MS, FIRST_DELAY_MS << (self.young_deaths - 1))


@dataclass
class Child:
    """A role that should run, and its process. `pid` is 0 while there is no process."""

    role: int
    main: Callable[[ProcessContext], int]
    # Descriptors that it inherits besides stdio and the doorbells; a function is called when it is forked.
    fds: tuple[int, ...] | Callable[[], tuple[int, ...]] = ()
    about: Callable[[], str] = str  # returns the part of its title after its name
    pid: int = 0
    pidfd: int = -1
    incarnation: int = 0
    started: float = 0.0  # time.monotonic()
    pulse: Pulse = field(default_factory=Pulse)
    last_turns: int = -1
    moves: Patience = field(default_factory=lambda: Patience(0))  # limit for signs of life while it starts
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    restart_at: float | None = None
    serves: bool = False  # it is ready, and its peers know
    hears: bool = False  # it reads its orders
    missed: list[tuple[int, int]] = field(default_factory=list)  # (stage, role) of orders it did not hear
    ready_by: Patience = field(default_factory=lambda: Patience(0))
    leaves_by: Patience | None = None  # it was ordered to leave, and gets no successor
    died_at: float = 0.0  # time.monotonic(); 0: never

    @property
    def name(self) -> str:
        return name_of(self.role)


def fork_child(child: Child, context: ProcessContext) -> None:
    """Start the role's process.

    The supervisor must have no other threads, because a child would inherit their locks as held. Raises
    OSError. The caller must then call `abandon`, because the process may exist already.
    """
    tasks = sum(1 for _ in Path("/proc/self/task").iterdir())
    if tasks != 1 or threading.active_count() != 1:
        raise RuntimeError(f"the supervisor has {tasks} threads; it may not fork")
    sys.stdout.flush()
    _flush_log()
    parent = os.getpid()
    own_fds = child.fds() if callable(child.fds) else child.fds
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _OUR_SIGNALS)
    try:
        if sys.version_info < (3, 12):
            # An entry that is replaced writes to the page of the name in it, which would be copied. Later
            # versions do not count references to names.
            sys._clear_type_cache()
        pid = os.fork()
        if pid == 0:
            keep = {0, 1, 2, *context.memory.bell_fds, *own_fds}
            _child_main(child, context, parent, keep, blocked)
    finally:
        # Restore the mask in every case: a process deaf to its signals cannot be stopped, nor can later
        # children.
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    child.pid = pid
    child.pidfd = os.pidfd_open(pid)
    child.started = time.monotonic()
    child.last_turns = -1


def abandon(child: Child) -> None:
    """Kill the process of a start that failed in `fork_child`: a role may not have two processes."""
    if child.pidfd >= 0:
        os.close(child.pidfd)
    if child.pid:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    child.pid, child.pidfd = 0, -1


def _child_main(
    child: Child, context: ProcessContext, parent: int, keep: set[int], mask: set[signal.Signals] | set[int]
) -> None:
    code: int = 1
    try:
        # Exclude inherited objects from collections, which would write to all their pages.
        gc.freeze()
        gc.enable()
        signal.set_wakeup_fd(-1)
        for number in _OUR_SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in _OF_THE_SUPERVISOR else signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: _terminated(context, parent))
        close_other_fds(keep)
        logs.set_process_name(child.name)
        context.entitle(child.about())
        is_killed = child.role in _KILLED_WITH_SUPERVISOR
        die_with_parent(parent, signal.SIGKILL if is_killed else signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = child.main(context)
    except FatalError as error:
        context.log.error("%s", error)
        context.counters.set_last_error(str(error))
        context.fatal(error.status)
        code = ExitCode.FATAL
    except BaseException:
        context.log.critical("the %s process fails", child.name, exc_info=True)
        context.counters.set_last_error(traceback.format_exc(limit=-2))
    finally:
        _flush_log()
        os._exit(code)


def _flush_log() -> None:
    """Write the buffered log. Ignore errors: they must not end a process or change its exit code."""
    with suppress(OSError):
        sys.stderr.flush()


def _terminated(context: ProcessContext, parent: int) -> None:
    """Handle SIGTERM: stop if the supervisor has died, otherwise do nothing.

    The kernel sends SIGTERM when the supervisor dies. While the supervisor lives, it alone decides which
    roles stop, and in which order. A SIGTERM to the whole process group must not end roles during a graceful
    stop.
    """
    if os.getppid() != parent:
        context.terminate()


def close_other_fds(keep: set[int]) -> None:
    """Close all descriptors except `keep`. A forked process has inherited its parent's descriptors."""
    for fd in procfs.open_descriptors():
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                continue  # the listing's own descriptor, closed already
