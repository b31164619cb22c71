"""The process that waits for the standby: it passes signals and notices on, and knows what comes next."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import titles
from mpbroker.standby import process
from mpbroker.standby.runner import EXIT_FAILED
from mpbroker.supervisor import logs, roles
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED
from mpbroker.supervisor.logs import LogFormat
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.status import BECAME


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Return the socket of a service manager. What a start changes in its process is as before afterwards."""
    with ExitStack() as stack:
        changes = ((logs, "configure"), (titles, "entitle"), (titles, "name_broker"), (roles, "prepare"))
        for module, name in changes:
            stack.enter_context(patch.object(module, name))
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.getsignal(number))
        told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        told.bind("")
        told.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + told.getsockname()[1:].decode())
        # It is put back as it was.
        monkeypatch.setenv(BECAME, "")
        yield told


def run(follow: Callable[[Notifier], int | None]) -> int | None:
    def called(
        _config: BrokerConfig, _words: Sequence[str], notifier: Notifier, *, read_only: bool
    ) -> int | None:
        assert not read_only
        return follow(notifier)

    with patch.object(process, "follow", called):
        return process.run(BrokerConfig(), ["serve"], LogFormat.TEXT)


def test_it_becomes_the_broker_when_the_standby_owns_the_ledger(systemd: socket.socket) -> None:
    def follow(notifier: Notifier) -> None:
        notifier.ready("Following")

    assert run(follow) is None
    assert systemd.recv(100) == b"READY=1\nSTATUS=Following"
    # The broker notifies, too.
    assert "NOTIFY_SOCKET" in os.environ
    assert float(os.environ[BECAME]) > 0


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("code", [0, 2])
def test_it_ends_as_the_standby_ends(code: int) -> None:
    assert run(lambda _notifier: code) == code


@pytest.mark.usefixtures("systemd")
def test_a_standby_that_fails_or_is_killed_is_a_failure() -> None:
    def fail(_notifier: Notifier) -> None:
        raise ValueError("a bug")

    assert run(fail) == EXIT_FAILED
    assert run(lambda _notifier: os.kill(os.getpid(), signal.SIGKILL)) == EXIT_FAILED


@pytest.mark.usefixtures("systemd")
def test_a_stop_signal_reaches_the_standby() -> None:
    def follow(_notifier: Notifier) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getppid(), signal.SIGTERM)
        return 7 if signal.sigwait({signal.SIGTERM}) else 0

    assert run(follow) == 7


@pytest.mark.usefixtures("systemd")
def test_sockets_of_the_service_manager_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    assert run(lambda _notifier: 0) == EXIT_MISCONFIGURED
