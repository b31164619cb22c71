"""A client of a running broker's supervisor: one JSON message each way, over its own Unix socket.

The socket is `control.sock` in the runtime directory, of type SOCK_SEQPACKET, so that a message is a
message. The runtime directory is `$MPBROKER_RUNTIME_DIR` or what `mpbroker.json` in a log directory says.
The supervisor answers also when every other process is jammed.
"""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.ipc.pointer import CONTROL_NAME, POINTER_NAME, has_broker, is_locked, read_pointer
from shm.ownership import UntrustedPath, check_path

REPLY_BYTES_MAX = 1 << 20
TIMEOUT_SECONDS = 10.0


def _is_copied(log_dir: Path, runtime_dir: Path) -> bool:
    """Return whether the broker that the directory's pointer names runs, but not on this directory."""
    try:
        return not has_broker(log_dir) and is_locked(runtime_dir)
    except OSError:
        # Of another user: who may ask that broker is decided when it is asked.
        return False


class ControlClient:
    """A client of one broker's supervisor. Each request is a connection of its own, so none can go stale.

    `owner`: the uid of the broker; None: that of the runtime directory, which was named.
    """

    def __init__(
        self, runtime_dir: Path, timeout_seconds: float = TIMEOUT_SECONDS, *, owner: int | None = None
    ) -> None:
        self.path = runtime_dir / CONTROL_NAME
        self._owner = owner
        self.timeout_seconds = timeout_seconds

    @classmethod
    def find(cls, log_dirs: str | None) -> "ControlClient":
        """Return a client of the broker that the environment names, else of the first log directory's.

        Raises CliError.
        """
        if runtime_dir := os.environ.get("MPBROKER_RUNTIME_DIR"):
            return cls(Path(runtime_dir))
        directory = Path((log_dirs or "data").split(",")[0].strip())
        path = directory / POINTER_NAME
        try:
            pointer = read_pointer(directory)
        except NotADirectoryError as error:
            raise _no_directory(directory, log_dirs, "is not a directory") from error
        except OSError as error:
            raise CliError(f"{path} cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise CliError(f"{path} is damaged ({error}); set MPBROKER_RUNTIME_DIR instead") from error
        if pointer is None and not directory.is_dir():
            raise _no_directory(directory, log_dirs, "is not there")
        if pointer is None:
            raise CliError(
                f"no broker is running on {directory.absolute()} (it has no {POINTER_NAME}); "
                "name its data directory with --log-dirs, or set MPBROKER_RUNTIME_DIR"
            )
        named = Path(pointer.runtime_dir)
        if _is_copied(directory, named):
            raise CliError(
                f"no broker is running on {directory.absolute()}: its {POINTER_NAME} was copied from the "
                f"directory of another broker, which runs. Name that one with --log-dirs"
            )
        return cls(named, owner=path.stat().st_uid)

    def checked(self, name: str) -> Path:
        """Return the path of a file in the runtime directory, after a check that it is the broker's.

        Raises CliError: another user could have put it there.
        """
        path = self.path.with_name(name)
        try:
            check_path(path, self.path.parent.stat().st_uid if self._owner is None else self._owner)
        except UntrustedPath as error:
            raise CliError(f"{path} may not be the broker's: {error}") from error
        except OSError:
            pass  # its user reports what is missing
        return path

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the supervisor's reply. Raises CliError."""
        self.checked(CONTROL_NAME)
        request = msgspec.json.encode({"command": command, **arguments})
        try:
            packet = self._exchange(request)
        except TimeoutError as error:
            raise CliError(
                f"the supervisor at {self.path} has not answered within {self.timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise self._explain(error) from error
        if not packet:
            raise CliError(f"the supervisor at {self.path} closed the connection without an answer")
        try:
            reply: dict[str, Any] = msgspec.json.decode(packet, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise CliError(
                f"the supervisor at {self.path} answered something else than JSON: {error}"
            ) from error
        if "error" in reply:
            raise CliError(str(reply["error"]))
        return reply

    def _exchange(self, request: bytes) -> bytes:
        # An address has room for 107 bytes of path; a path through the directory's descriptor always fits.
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(self.timeout_seconds)
                connection.connect(f"/proc/self/fd/{directory}/{self.path.name}")
                connection.send(request)
                return connection.recv(REPLY_BYTES_MAX)
        finally:
            os.close(directory)

    def _explain(self, error: OSError) -> CliError:
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            return CliError(
                f"no broker is running: nobody listens on {self.path}; start one with mpbroker serve"
            )
        if error.errno == errno.EACCES:
            return CliError(f"{self.path} is not yours to use; run this as the broker's user")
        return CliError(f"{self.path}: {error.strerror}")


def _no_directory(directory: Path, log_dirs: str | None, why: str) -> CliError:
    """Make an error about a directory: a wrong --log-dirs is a usage error, a missing default is not."""
    given = "--log-dirs: " if log_dirs else "no broker is running here: "
    return CliError(
        f"{given}{directory.absolute()} {why}; name the broker's data directory with --log-dirs, or set "
        "MPBROKER_RUNTIME_DIR",
        USAGE_ERROR if log_dirs else RUNTIME_ERROR,
    )
