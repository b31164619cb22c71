"""The control socket answers whatever goes wrong with a command: no client is left without a reason."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.process import FatalError
from mpbroker.storage.damage import Damage, FileIdentity
from mpbroker.supervisor import scrubbing
from mpbroker.supervisor.control import ANSWER_BYTES_MAX, Command, ControlSocket, Later, Peer
from tests.support.polling import PATIENCE_S


def untold(peer: Peer, command: Command, answer: dict[str, Any]) -> None:
    """Keep no audit log."""


class Control(ControlSocket):
    """A control socket whose descriptors the test watches."""

    def __init__(
        self,
        directory: Path,
        serve: Callable[[Command], dict[str, Any] | Later] = lambda _: {},
        tell: Callable[[Peer, Command, dict[str, Any]], None] = untold,
    ) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        super().__init__(directory, serve, tell, self.watched.__setitem__, lambda _: None)

    def asked(self) -> str:
        """Return what a client is told that asks for a status."""
        self.sock.setblocking(True)
        told: list[str] = []

        def ask() -> None:
            try:
                told.append(str(ControlClient(self.path.parent, timeout_seconds=10).call("status")))
            except ControlError as refused:
                told.append(str(refused))

        asking = threading.Thread(target=ask)
        asking.start()
        self.accept()
        (connection,) = self.asking.values()
        connection.setblocking(True)
        self.watched[connection.fileno()]()
        asking.join(PATIENCE_S)
        return told[0]


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "no descriptor is left"), ValueError("no number"), FatalError("no place")]
)
def test_what_a_command_raises_is_its_answer(tmp_path: Path, error: Exception) -> None:
    def serve(_: Command) -> dict[str, str]:
        raise error

    with closing(Control(tmp_path, serve)) as control:
        assert control.asked() == str(error)


@pytest.mark.parametrize(
    "message", [b"[]", b"\xff", b'{"command":' + b"[" * 100_000, b'{"a":' + b"[" * 100_000]
)
def test_what_is_no_command_is_an_error(tmp_path: Path, message: bytes) -> None:
    with (
        closing(Control(tmp_path)) as control,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
    ):
        client.connect(control.sock.getsockname())
        control.sock.setblocking(True)
        control.accept()
        client.sendall(message)
        (read,) = control.watched.values()
        read()
        assert "error" in msgspec.json.decode(client.recv(1 << 16))


def test_the_kernel_says_who_sent_a_command(tmp_path: Path) -> None:
    told: list[tuple[Peer, str, dict[str, Any]]] = []
    later = Later()

    def serve(_: Command) -> dict[str, Any] | Later:
        if told:
            return later
        raise ValueError("no number")

    def tell(peer: Peer, command: Command, answer: dict[str, Any]) -> None:
        told.append((peer, command.command, answer))

    with closing(Control(tmp_path, serve, tell)) as control:
        control.asked()
        me = Peer(os.getpid(), os.getuid())
        assert told == [(me, "status", {"error": "no number", "wrong_call": True})]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(control.path))
            client.send(b'{"command": "reload"}')
            control.accept()
            (connection,) = control.asking.values()
            control.watched[connection.fileno()]()
            assert len(told) == 1, "nothing has come of it yet"
        later.give({})
        assert told[1:] == [(me, "reload", {})], "also if its client is gone"


def test_an_answer_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    answer = {"much": "x" * ANSWER_BYTES_MAX}
    with closing(Control(tmp_path, lambda _: answer)) as control:
        assert "more than" in control.asked()
        answer["much"] = "x" * (ANSWER_BYTES_MAX - 100)
        assert answer["much"] in control.asked()


def test_a_supervisor_without_descriptors_says_so_and_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Control(tmp_path)) as control:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(str(control.path))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            for _ in range(2):
                control.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert control.asking == {}
        client.settimeout(PATIENCE_S)
        assert b"Too many open files" in client.recv(1000)
        client.close()
        assert "LimitNOFILE" in caplog.text
        assert control.asked() == "{}"


def test_no_more_damage_is_told_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "p" * 240
    monkeypatch.setattr(scrubbing, "progress", lambda _: {})
    file = FileIdentity(1, 2, 3)
    many = [Damage(name, n, n, n, n, n, "a reason", file, n) for n in range(1000)]
    known = SimpleNamespace(current=None, last=None, all_damages=lambda: many)
    monkeypatch.setattr(scrubbing, "read_scrubbed", lambda _: known)
    monkeypatch.setattr(Damage, "is_there", lambda *_: True)
    answer = scrubbing.report(cast(Any, None), BrokerConfig(log_dirs=(str(tmp_path),)))
    assert 100 < len(answer["findings"]) < 1000
    assert len(msgspec.json.encode(answer)) < ANSWER_BYTES_MAX
