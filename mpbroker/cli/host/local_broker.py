"""The broker on this host that a command is about: by its data directory, or by a port that it listens on.

By its port a broker is found among the runtime directories in memory. Anybody may make a directory there, so
the one counts whose owner also owns the listening socket, as the kernel tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.config.environment import RUNTIME_DIR
from mpbroker.config.listeners import port_of
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import CONTROL_NAME, POINTER_NAME, has_broker, is_locked, read_pointer

# Where runtime directories are: of brokers that users start, and of services.
PLACES = ("/dev/shm/*", "/dev/shm/mpbroker-*/*", "/run/*", "/run/user/*/*")
LISTENING = "0A"
ROOT = 0
# Another broker may be jammed; this one is found all the same.
PATIENCE_SECONDS = 2.0


class LocalBroker(NamedTuple):
    """The flags that name a broker on this host; none of them: the data directory is ./data."""

    log_dirs: str | None = None
    port: int | None = None

    def control(self) -> ControlClient:
        """Return a client of the broker's supervisor. Raises CliError if it is not found."""
        if self.port is None:
            return by_log_dirs(self.log_dirs)
        if self.log_dirs is not None:
            raise CliError("--port and --log-dirs exclude each other: both name the broker", USAGE_ERROR)
        return by_port(self.port)


def by_log_dirs(log_dirs: str | None) -> ControlClient:
    """Return a client of the broker that the environment names, else of the first log directory's.

    `log_dirs` is what --log-dirs says; None: ./data. Raises CliError.
    """
    if runtime_dir := os.environ.get(RUNTIME_DIR):
        return ControlClient(Path(runtime_dir))
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
    return ControlClient(named, owner=path.stat().st_uid)


def _is_copied(log_dir: Path, runtime_dir: Path) -> bool:
    """Return whether the broker that the directory's pointer names runs, but not on this directory."""
    try:
        return not has_broker(log_dir) and is_locked(runtime_dir)
    except OSError:
        # Of another user: who may ask that broker is decided when it is asked.
        return False


def by_port(port: int) -> ControlClient:
    """Return a client of the supervisor of the broker that listens on a TCP port. Raises CliError."""
    owners = listening_owners(port)
    if not owners:
        raise CliError(f"nobody listens on port {port} of this host")
    for directory in _runtime_dirs():
        owner = directory.stat().st_uid
        # systemd has opened the port of a service; only root puts directories into /run.
        if owner not in owners and not (ROOT in owners and directory.is_relative_to("/run")):
            continue
        client = ControlClient(directory, PATIENCE_SECONDS, owner=owner)
        try:
            listeners = client.call("listeners")["listeners"]
        except ControlError:
            continue
        if port in {port_of(one["listener"]) for one in listeners}:
            return ControlClient(directory, owner=owner)
    raise CliError(
        f"no broker that you may ask listens on port {port}: run this as its user, name its data directory "
        "with --log-dirs, or set MPBROKER_RUNTIME_DIR"
    )


def listening_owners(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> set[int]:
    """Return the users whose sockets listen on a TCP port of this host."""
    owners = set()
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            # A kernel without IPv6.
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, *_ = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                owners.add(int(uid))
    return owners


def _runtime_dirs() -> Iterator[Path]:
    named = os.environ.get(RUNTIME_DIR)
    if named:
        yield Path(named)
    for pattern in PLACES:
        for path in sorted(Path("/").glob(f"{pattern.removeprefix('/')}/{CONTROL_NAME}")):
            yield path.parent


def _no_directory(directory: Path, log_dirs: str | None, why: str) -> CliError:
    """Make an error about a directory: a wrong --log-dirs is a usage error, a missing default is not."""
    given = "--log-dirs: " if log_dirs else "no broker is running here: "
    return CliError(
        f"{given}{directory.absolute()} {why}; name the broker's data directory with --log-dirs, or set "
        f"{RUNTIME_DIR}",
        USAGE_ERROR if log_dirs else RUNTIME_ERROR,
    )
