"""A client of the supervisor: one message there, one back, and every way that can fail."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import CONTROL_NAME
from tests.support.fake_supervisor import FakeSupervisor


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    """As long as a path may be: longer than a socket's address."""
    path = tmp_path / ("d" * 100) / "run"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def supervisor(runtime_dir: Path) -> Iterator[FakeSupervisor]:
    fake = FakeSupervisor(runtime_dir)
    yield fake
    fake.close()


def test_a_socket_that_another_user_can_replace(supervisor: FakeSupervisor, runtime_dir: Path) -> None:
    """Such a user would answer in the broker's place."""
    (runtime_dir / "public").touch()
    runtime_dir.chmod(0o777)
    with pytest.raises(ControlError, match=r"may not be the broker's: .*/run can be written by all users"):
        ControlClient(runtime_dir).call("status")
    with pytest.raises(ControlError, match="public may not be the broker's"):
        ControlClient(runtime_dir).checked("public")
    assert supervisor.requests == []


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'{"error": "33 handlers are too many; at most 32"}', "33 handlers are too many; at most 32"),
        (b"", "closed the connection without an answer"),
        (b"hello", "something else than JSON"),
        (b"[1]", "something else than JSON"),
    ],
)
def test_replies_that_are_none(
    supervisor: FakeSupervisor, runtime_dir: Path, reply: bytes, message: str
) -> None:
    supervisor.replies = [reply]
    with pytest.raises(ControlError, match=message):
        ControlClient(runtime_dir).call("status")


def test_a_supervisor_that_does_not_answer(runtime_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        directory = os.open(runtime_dir, os.O_PATH)
        listener.bind(f"/proc/self/fd/{directory}/{CONTROL_NAME}")
        os.close(directory)
        listener.listen()
        with pytest.raises(ControlError, match=r"has not answered within 0\.05 s"):
            ControlClient(runtime_dir, timeout_seconds=0.05).call("status")


def test_nobody_is_there(runtime_dir: Path) -> None:
    with pytest.raises(ControlError, match="no broker is running"):
        ControlClient(runtime_dir).call("status")
    FakeSupervisor(runtime_dir).close()
    with pytest.raises(ControlError, match="no broker is running"):
        ControlClient(runtime_dir).call("status")
