"""The pause for a backup ends whatever happens, and its client knows whether it held."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psutil
import pytest

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import read_pointer
from mpbroker.supervisor import pause
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.control import Later
from mpbroker.testing import Broker
from shm import procfs
from tests.support.polling import PATIENCE_S, until


@pytest.fixture
def child() -> Iterator[Child]:
    """A process that waits for its end."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    pidfd = os.pidfd_open(pid)
    yield cast("Child", SimpleNamespace(pid=pid, pidfd=pidfd, name="log", serves=True, leaves_by=None))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pidfd)


def is_stopped(child: Child) -> bool:
    return procfs.process(child.pid).state == "T"


def holding(child: Child, **options: Any) -> tuple[socket.socket, threading.Thread, list[Any]]:
    """The client's end of a pause that goes on in a thread, and what will be told."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE_S)
    asked, told = Later(), []
    asked.connection = theirs
    asked.send_with(told.append)
    options = {"poll": lambda: False, "limit_s": PATIENCE_S, **options}
    thread = threading.Thread(target=pause.hold, args=([child], asked), kwargs=options)
    thread.start()
    assert msgspec.json.decode(ours.recv(1 << 10)) == {"paused": True}
    return ours, thread, told


def test_it_holds_until_the_client_is_done(child: Child) -> None:
    client, thread, told = holding(child)
    assert is_stopped(child)
    client.send(b"done")
    thread.join(PATIENCE_S)
    assert told[0].keys() == {"held_s"}
    assert not is_stopped(child)
    client.close()


def test_a_client_that_goes_ends_it(child: Child) -> None:
    client, thread, told = holding(child)
    client.close()
    thread.join(PATIENCE_S)
    assert told == [{"error": "the client has disconnected"}]
    assert not is_stopped(child)


def test_a_limit_ends_it_and_the_client_is_not_told_that_it_held(child: Child) -> None:
    client, thread, told = holding(child, limit_s=0.5)
    thread.join(PATIENCE_S)
    assert told == [{"error": "the pause has reached its limit"}]
    assert not is_stopped(child)
    client.close()


def test_a_process_that_somebody_else_continues_ends_it(child: Child) -> None:
    """As a shell does with a job that it takes to the foreground."""
    client, thread, told = holding(child)
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: not is_stopped(child), "the child goes on")
    client.send(b"done")
    thread.join(PATIENCE_S)
    assert told == [{"error": "a process was continued meanwhile"}]
    client.close()


def test_a_stop_of_the_broker_ends_it(child: Child) -> None:
    client, thread, told = holding(child, poll=lambda: True)
    thread.join(PATIENCE_S)
    assert told == [{"error": "the broker stops"}]
    assert not is_stopped(child)
    client.close()


def test_the_guard_continues_all_when_the_supervisor_is_stopped_itself(child: Child) -> None:
    """Only the guard checks the limit then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        asked = Later()
        asked.connection = theirs
        pause.hold([child], asked, poll=lambda: bool(os.kill(os.getpid(), signal.SIGSTOP)), limit_s=0.5)
        os._exit(0)
    try:
        until(lambda: procfs.process(pid).state == "T", "the supervisor is stopped")
        until(lambda: not is_stopped(child), "the child goes on")
        assert procfs.process(pid).state == "T"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ours.close()
        theirs.close()


def test_the_supervisor_outlives_a_limit_of_processes(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    asked, told = Later(), []
    asked.connection, _ = socket.socketpair()
    asked.send_with(told.append)
    monkeypatch.setattr(pause.os, "fork", refuse)
    pause.hold([child], asked, poll=lambda: False)
    assert told == [{"error": "a pause needs a process that ends it: Resource temporarily unavailable"}]
    assert not is_stopped(child)


@pytest.mark.parametrize("change", [{"pid": 0}, {"serves": False}, {"leaves_by": object()}])
def test_none_begins_while_a_process_comes_or_goes(child: Child, change: dict[str, object]) -> None:
    assert pause.problem([child]) == ""
    vars(child).update(change)
    assert pause.problem([child]) == "log is starting or stopping"


def test_a_broker_goes_on_after_a_client_that_died_and_says_when_it_cannot_pause(
    mpbroker_own_broker: Broker,
) -> None:
    pids = processes_of(mpbroker_own_broker)
    control = control_of(mpbroker_own_broker)
    with paused(control):
        assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
    # The supervisor answers again, and so do all others.
    assert mpbroker_own_broker.create_topic()
    with paused(control) as ask:
        assert ask("resume").keys() == {"held_s"}
    assert mpbroker_own_broker.create_topic()
    assert processes_of(mpbroker_own_broker) == pids
    with pytest.raises(ControlError, match="unknown command"):
        control.call("resume")


def test_a_supervisor_that_is_killed_in_a_pause_leaves_nobody(mpbroker_own_broker: Broker) -> None:
    pids = processes_of(mpbroker_own_broker)
    with paused(control_of(mpbroker_own_broker)):
        os.kill(mpbroker_own_broker.pid, signal.SIGKILL)
        until(lambda: not any(map(runs, pids)), "all processes have ended")
    mpbroker_own_broker.kill()


@contextmanager
def paused(control: ControlClient) -> Iterator[Callable[..., Any]]:
    """Pause a broker once no process of it is starting; yield what asks on the connection that holds it."""
    with ExitStack() as held:

        def pause_it() -> Callable[..., Any] | None:
            ask: Callable[..., Any] = held.enter_context(control.connected())
            if ask("pause")["paused"]:
                return ask
            held.close()
            return None

        asks = until(pause_it, "the broker is paused")
        assert asks is not None
        yield asks


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def control_of(broker: Broker) -> ControlClient:
    pointer = read_pointer(Path(broker.log_dir))
    assert pointer is not None
    return ControlClient(Path(pointer.runtime_dir), PATIENCE_S)


def processes_of(broker: Broker) -> list[int]:
    return [one["pid"] for one in control_of(broker).call("status")["processes"]]
