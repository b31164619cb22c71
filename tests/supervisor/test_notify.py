"""What systemd is told: READY=1 only when the ports answer, STOPPING=1 before they close (sd_notify(3))."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpbroker.ipc import health
from mpbroker.supervisor import notify
from mpbroker.supervisor.main import Supervisor
from mpbroker.supervisor.notify import Notifier
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a short name: a socket's address has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mpbroker-notify-") as made:
        yield Path(made)


class Manager:
    """The receiving end of the service manager's socket, and the service that it started."""

    def __init__(self, directory: Path, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(TIMEOUT_S)
        self.service = Mpbroker(directory)
        self.process = subprocess.Popen(
            self.service.command(),
            env={**self.service.environment(), "NOTIFY_SOCKET": address},
            stderr=subprocess.PIPE,
            text=True,
        )

    def told_until(self, wanted: str) -> list[str]:
        """Every assignment up to the message with `wanted`, that message included."""
        told: list[str] = []
        while wanted not in told:
            told += self.socket.recv(4096).decode().split("\n")
        return told

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.service.kill()
        self.socket.close()


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_ready_means_that_the_ports_answer(directory: Path, abstract: bool) -> None:
    address = f"@mpbroker-notify-{os.getpid()}" if abstract else str(directory / "notify")
    with contextlib.closing(Manager(directory, address)) as manager:
        told = manager.told_until("READY=1")
        # One try, at once: whoever is started after this service will not wait either.
        assert frames.PRODUCE in frames.advertised_apis(manager.service.address, timeout_s=TIMEOUT_S)
        assert f"STATUS=Serving on PLAINTEXT://{manager.service.bootstrap}" in told
        assert "STOPPING=1" not in told
        assert "EXTEND_TIMEOUT_USEC=60000000" in told, "however long the log recovers"

        manager.process.terminate()
        manager.told_until("STOPPING=1")
        assert manager.process.wait(TIMEOUT_S) == 0


def test_a_service_that_cannot_start_is_never_ready(directory: Path) -> None:
    (directory / "data").mkdir()
    (directory / "data" / "stranger").touch()
    with contextlib.closing(Manager(directory, str(directory / "notify"))) as manager:
        assert manager.process.wait(TIMEOUT_S) == 1
        manager.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.told_until("READY=1")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_manager_that_does_not_listen_keeps_nobody_from_being_served(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    """Its socket is gone, or it reads nothing of what is in it."""
    address = str(directory / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with contextlib.ExitStack() as stack:
        if is_there:
            manager, other = (
                stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2)
            )
            manager.bind(address)
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"full", address)
        notifier = Notifier()
        notifier.ready("Serving")
        notifier.stopping()
    said = [record.getMessage() for record in caplog.records]
    for what, text in zip(("READY=1", "STOPPING=1"), said, strict=True):
        assert f"cannot send {what} to the service manager (NOTIFY_SOCKET={address})" in text


def test_the_watchdog_is_pinged_twice_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    now = [100.0]
    monkeypatch.setattr(notify.time, "monotonic", lambda: now[0])
    notifier = Notifier()
    assert "WATCHDOG_USEC" not in os.environ, "no child pings"
    assert not notifier.is_ping_due(), "it begins when the broker is ready"
    notifier.begin_watchdog()
    assert notifier.is_ping_due()
    notifier.ping()
    now[0] += 9.9
    assert not notifier.is_ping_due()
    now[0] += 0.2
    assert notifier.is_ping_due()


@pytest.mark.parametrize(
    ("interval", "pid"), [("", ""), ("1000000", "1"), ("soon", ""), ("0", "")], ids=["off", "other", "x", "0"]
)
def test_without_a_watchdog_nobody_is_pinged(
    monkeypatch: pytest.MonkeyPatch, interval: str, pid: str
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    notifier = Notifier()
    notifier.begin_watchdog()
    assert not notifier.is_ping_due()


def test_pings_and_the_stages_of_a_reload_reach_the_manager(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    with contextlib.closing(Manager(directory, str(directory / "notify"))) as manager:
        told = manager.told_until("READY=1")
        assert "WATCHDOG=1" not in told
        manager.told_until("WATCHDOG=1")
        manager.process.send_signal(signal.SIGHUP)
        # It was started without a file, so nothing can be read again: that is told, and the reload ends.
        told = manager.told_until("RELOADING=1")
        told += manager.told_until("READY=1")
        assert any(one.startswith("MONOTONIC_USEC=") for one in told)
        assert any(one.startswith("STATUS=Serving; the reload changed nothing: ") for one in told)
        manager.told_until("WATCHDOG=1")


def test_no_ping_while_a_process_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    pinged: list[str] = []
    notifier = Notifier()
    monkeypatch.setattr(notifier, "send", lambda *told: pinged.extend(told))
    notifier.begin_watchdog()
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.notifier, supervisor.signals = notifier, 0
    supervisor.tree = SimpleNamespace(config=None, memory=None)  # type: ignore[assignment]
    silent = ["log 0 has not moved for 400 s"]
    monkeypatch.setattr(health, "unresponsive_processes", lambda _config, _memory: silent)
    supervisor._while_running()
    assert pinged == []
    silent.clear()
    supervisor._while_running()
    assert pinged == ["WATCHDOG=1"]
