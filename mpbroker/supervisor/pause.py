"""The pause of all processes but the supervisor, in which `mpbroker backup` copies the last changes.

A cut of the tier pauses all but the tier (`mpbroker.remote.cuts.instant`).

Copies made while the log workers write would show the files at different moments. So the supervisor stops the
children (SIGSTOP). Their files are then as after a kill of all children, which recovery can handle. A
cooperative pause would need code in the hot path of every writer. A signal needs no code in the writers, and
also works when a writer hangs.

The client that requested the pause keeps its connection, and sends a second message when its copy is
complete. The answer reports whether the pause lasted until then. The pause ends with the second message, with
the connection, with a stop of the broker, or after `LIMIT_S`. If the supervisor dies or is stopped itself,
another process, the guard, ends the pause, because no other process could continue the children.

During a pause the supervisor checks no heartbeats and handles no deaths, but it still pings systemd.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.ipc import titles, topology
from mpbroker.supervisor.child import Child, close_other_fds
from mpbroker.supervisor.control import Later
from shm import procfs

LIMIT_S: Final = 5.0
# Every minute, or more often: nobody may notice it.
CUT_LIMIT_S: Final = 0.2
# The interval between checks whether the pause ends.
_POLL_S: Final = 0.05
# States of a thread that does nothing more until it is continued, or ever.
_AT_REST: Final = frozenset("TtZXx")
_IGNORED_BY_GUARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU)

log = logging.getLogger("mpbroker.supervisor")


class _Ended(Exception):
    """The pause ended before the client had finished. The message is the reason."""


def problem(children: Sequence[Child]) -> str:
    """Return which process prevents a pause because it is starting or stopping; "" if none does."""
    for child in children:
        if not (child.pid and child.serves and child.leaves_by is None):
            return f"{child.name} is starting or stopping"
    return ""


class Kind(NamedTuple):
    """What a pause is for. `spared` are roles that are not stopped; `limit_s`: it ends after that."""

    purpose: str
    limit_s: float
    spared: tuple[int, ...] = ()
    level: int = logging.INFO


BACKUP: Final = Kind("backup", LIMIT_S)
CUT: Final = Kind("cut", CUT_LIMIT_S, (topology.TIER,), logging.DEBUG)


def hold(
    children: Sequence[Child],
    asked: Later,
    kind: Kind = BACKUP,
    *,
    poll: Callable[[], bool],
    limit_s: float | None = None,
) -> None:
    """Stop the children until the client has finished, continue them, then answer the client.

    `poll` is called regularly. If it returns True, the broker must stop, and the pause ends.
    """
    connection = asked.connection
    limit_s = kind.limit_s if limit_s is None else limit_s
    began = time.monotonic()
    answer: dict[str, object]
    try:
        with _guarded([child.pidfd for child in children], limit_s):
            try:
                _hold([child.pid for child in children], connection, began + limit_s, poll)
                answer = {"held_s": time.monotonic() - began}
            finally:
                for child in children:
                    os.kill(child.pid, signal.SIGCONT)
    except _Ended as ended:
        answer = {"error": str(ended)}
    except OSError as error:
        # There are too many processes or descriptors. Without a pause the broker lives on.
        answer = {"error": f"a pause needs a process that ends it: {error.strerror}"}
    paused_ms = (time.monotonic() - began) * 1000
    log.log(kind.level, "all processes were paused for a %s for %.0f ms", kind.purpose, paused_ms)
    asked.give(answer)


def _hold(pids: Sequence[int], connection: socket.socket, deadline: float, poll: Callable[[], bool]) -> None:
    """Stop the processes, notify the client, and wait for the client's second message. Raises _Ended."""
    limit = "the pause has reached its limit"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while not all(map(_is_at_rest, pids)):
        _wait(connection, 0.001)
        if time.monotonic() >= deadline:
            raise _Ended(f"{limit}: a process still waits for its disk")
    try:
        connection.send(msgspec.json.encode({"paused": True}))
    except OSError as error:
        raise _Ended(f"the client has disconnected: {error.strerror}") from error
    while not _wait(connection, min(_POLL_S, max(0.0, deadline - time.monotonic()))):
        if poll():
            raise _Ended("the broker stops")
        if time.monotonic() >= deadline:
            raise _Ended(limit)
    try:
        word = connection.recv(1 << 10)
    except OSError:
        word = b""
    if not word:
        raise _Ended("the client has disconnected")
    if time.monotonic() >= deadline:
        raise _Ended(limit)
    if not all(map(_is_at_rest, pids)):
        raise _Ended("a process was continued meanwhile")


def _wait(connection: socket.socket, timeout_s: float) -> bool:
    """Wait up to `timeout_s` until the connection receives a message or ends; return whether it did."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _is_at_rest(pid: int) -> bool:
    """Return whether all threads of the process have stopped, so that no write is under way."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if procfs.stat(thread).state not in _AT_REST:
                    return False
    return True


@contextmanager
def _guarded(pidfds: Sequence[int], limit_s: float) -> Iterator[None]:
    """Run a guard, a process that sends SIGCONT to `pidfds` if this process dies, or after `limit_s`."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_BY_GUARD)
        try:
            pid = os.fork()
            if pid == 0:
                _guard(reader, pidfds, limit_s)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    finally:
        os.close(writer)
        os.close(reader)


def _guard(reader: int, pidfds: Sequence[int], limit_s: float) -> None:
    """Wait for the supervisor's death or `limit_s`, then continue its children. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        for number in _IGNORED_BY_GUARD:
            signal.signal(number, signal.SIG_IGN)
        close_other_fds({2, reader, *pidfds})
        titles.entitle("guard of a pause")
        poll = select.poll()
        poll.register(reader, select.POLLHUP)
        poll.poll(limit_s * 1000)
    finally:
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        os._exit(0)
