"""The control socket answers whatever goes wrong with a command: no client is left without a reason."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.cli.control import ControlClient
from mpbroker.cli.errors import CliError
from mpbroker.ipc.process import FatalError
from mpbroker.supervisor.control import Command, ControlSocket


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "no descriptor is left"), ValueError("no number"), FatalError("no place")]
)
def test_what_a_command_raises_is_its_answer(tmp_path: Path, error: Exception) -> None:
    watched: dict[int, Callable[[], None]] = {}

    def serve(_: Command) -> dict[str, str]:
        raise error

    control = ControlSocket(tmp_path, serve, watched.__setitem__, lambda _: None)
    control.sock.setblocking(True)
    told: list[str] = []

    def ask() -> None:
        try:
            ControlClient(tmp_path, timeout_seconds=10).call("status")
        except CliError as refused:
            told.append(str(refused))

    asking = threading.Thread(target=ask)
    asking.start()
    control.accept()
    (connection,) = control.asking.values()
    connection.setblocking(True)
    watched[connection.fileno()]()
    asking.join(10)
    control.close()
    assert told == [str(error)]
