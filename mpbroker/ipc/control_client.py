"""A client of a running broker's supervisor: JSON messages over the control socket, a Unix-domain socket.

The socket is `control.sock` in the runtime directory, of type SOCK_SEQPACKET, which keeps messages apart. The
supervisor answers even when every other process hangs.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.ipc.pointer import CONTROL_NAME
from shm.ownership import UntrustedPath, check_path

REPLY_BYTES_MAX = 1 << 20
TIMEOUT_SECONDS = 10.0


class ControlError(Exception):
    """The supervisor cannot be reached, or has refused a command. The message is one line.

    `is_wrong_call` is true if the command itself is wrong, so that trying again cannot help.
    """

    def __init__(self, message: str, *, is_wrong_call: bool = False) -> None:
        super().__init__(message)
        self.is_wrong_call = is_wrong_call


class ControlClient:
    """A client of one broker's supervisor. Each request opens a connection of its own.

    `owner` is the uid that the broker must run as. None means the owner of the runtime directory.
    """

    def __init__(
        self, runtime_dir: Path, timeout_seconds: float = TIMEOUT_SECONDS, *, owner: int | None = None
    ) -> None:
        self.path = runtime_dir / CONTROL_NAME
        self._owner = owner
        self.timeout_seconds = timeout_seconds

    def checked(self, name: str) -> Path:
        """Return the path of a file in the runtime directory, after checking who could have made the file.

        Raises ControlError if a user other than the broker's (or root) could have made it.
        """
        path = self.path.with_name(name)
        try:
            check_path(path, self.path.parent.stat().st_uid if self._owner is None else self._owner)
        except UntrustedPath as error:
            raise ControlError(f"{path} may not be the broker's: {error}") from error
        except OSError:
            pass  # its user reports the missing file
        return path

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the supervisor's reply. Raises ControlError."""
        with self.connected() as ask:
            return ask(command, **arguments)

    @contextmanager
    def connected(self) -> Iterator[Callable[..., dict[str, Any]]]:
        """Yield a function like `call` that sends all commands over one connection. Raises ControlError."""
        self.checked(CONTROL_NAME)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(self.timeout_seconds)
            try:
                self._connect(connection)
            except OSError as error:
                raise self._explain(error) from error
            yield partial(self._ask, connection)

    def _ask(self, connection: socket.socket, command: str, **arguments: Any) -> dict[str, Any]:
        try:
            connection.send(msgspec.json.encode({"command": command, **arguments}))
            packet = connection.recv(REPLY_BYTES_MAX)
        except TimeoutError as error:
            raise ControlError(
                f"the supervisor at {self.path} has not answered within {self.timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise self._explain(error) from error
        if not packet:
            raise ControlError(f"the supervisor at {self.path} closed the connection without an answer")
        try:
            reply: dict[str, Any] = msgspec.json.decode(packet, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ControlError(
                f"the supervisor at {self.path} answered something else than JSON: {error}"
            ) from error
        if "error" in reply:
            raise ControlError(str(reply["error"]), is_wrong_call=bool(reply.get("wrong_call")))
        return reply

    def _connect(self, connection: socket.socket) -> None:
        # An address has room for 107 bytes of path; a path through the directory's descriptor always fits.
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{directory}/{self.path.name}")
        finally:
            os.close(directory)

    def _explain(self, error: OSError) -> ControlError:
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            return ControlError(
                f"no broker is running: no process listens on {self.path}; start one with mpbroker serve"
            )
        if error.errno == errno.EACCES:
            return ControlError(f"{self.path} is not yours to use; run this as the broker's user")
        return ControlError(f"{self.path}: {error.strerror}")
