"""Finds the broker on this host that a command names by its data directory, address or port.

A broker named by address or port is looked up in the runtime directories on tmpfs. Any user may make a
directory there, so a directory counts only if its owner also owns the listening socket.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from mpbroker.cli.broker_flags import LocalBootstrap, LogDirs, Port
from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError, with_advice
from mpbroker.config.environment import BOOTSTRAP_SERVER, DEFAULT_BOOTSTRAP, RUNTIME_DIR
from mpbroker.config.listeners import port_of, reachable
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import CONTROL_NAME, POINTER_NAME, has_broker, is_locked, read_pointer

# Where runtime directories are: of brokers that users start, and of services.
PLACES = ("/dev/shm/*", "/dev/shm/mpbroker-*/*", "/run/*", "/run/user/*/*")
LISTENING = "0A"
ROOT = 0
# Another broker may be jammed; this one is found all the same.
PATIENCE_SECONDS = 2.0
_HOW_TO_NAME = f"name the broker with -b HOST:PORT or --log-dirs, or set {BOOTSTRAP_SERVER} or {RUNTIME_DIR}"


class LocalBroker(NamedTuple):
    """The flags that name a broker on this host.

    Without a flag the environment names it: MPBROKER_RUNTIME_DIR, or else MPBROKER_BOOTSTRAP_SERVER. Without
    these variables the data directory is ./data. If ./data does not exist, the broker is the one on
    127.0.0.1:9092.
    """

    log_dirs: LogDirs = None
    port: Port = None
    bootstrap: LocalBootstrap = None

    def check(self) -> None:
        """Check that at most one flag names the broker. Raises CliError."""
        flags = {"--bootstrap-server": self.bootstrap, "--port": self.port, "--log-dirs": self.log_dirs}
        given = [name for name, value in flags.items() if value is not None]
        if len(given) > 1:
            raise CliError(
                f"{' and '.join(given)} exclude each other: each of them names the broker", USAGE_ERROR
            )

    def control(self, *, or_default: bool = True) -> ControlClient:
        """Return a client of the broker's supervisor. Raises CliError if no broker is found.

        `or_default`: without ./data, use the broker on the default port, and print that it is used.
        """
        self.check()
        if self.port is not None:
            return by_port(self.port)
        if self.bootstrap is not None:
            return by_address(self.bootstrap)
        if self.log_dirs is None and (address := bootstrap_of_environment()) is not None:
            try:
                return by_address(address)
            except CliError as error:
                raise with_advice(
                    error, f". {BOOTSTRAP_SERVER} names it: unset that, or name another broker with a flag"
                ) from error
        try:
            return by_log_dirs(self.log_dirs)
        except CliError:
            is_named = self.log_dirs is not None or os.environ.get(RUNTIME_DIR)
            if or_default and not is_named and not Path("data").is_dir():
                with suppress(CliError):
                    found = by_address(DEFAULT_BOOTSTRAP)
                    _name_default()
                    return found
            raise


@cache
def _name_default() -> None:
    """Print once that a command is about the default broker, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"mpbroker: no ./data here: this is about the broker on {DEFAULT_BOOTSTRAP}", file=sys.stderr)


def bootstrap_of_data() -> str | None:
    """Return the address of the broker that runs on ./data; None if ./data is not a log directory.

    The listener named PLAINTEXT is preferred, since it has neither TLS nor logins. Raises CliError if no
    broker runs on ./data, since the default address would lead to another broker.
    """
    # Probes import this module often, and need none of that.
    from mpbroker.storage.names import META_PROPERTIES

    directory = Path("data")
    try:
        if not (directory / META_PROPERTIES).is_file():
            return None
        pointer = read_pointer(directory)
        runs = has_broker(directory)
    except (OSError, msgspec.DecodeError):
        # The directory belongs to another user.
        return None
    if not runs:
        raise CliError(
            f"no broker is running on {directory.absolute()}: start it (mpbroker serve, make run), or name "
            f"another one with -b HOST:PORT or {BOOTSTRAP_SERVER}"
        )
    if pointer is None or not pointer.listeners:
        raise CliError(
            f"the broker on {directory.absolute()} does not listen yet: mpbroker ctl ready --wait waits for "
            "that"
        )
    return reachable(pointer.listeners.get("PLAINTEXT") or next(iter(pointer.listeners.values())))


def bootstrap_of_environment() -> str | None:
    """Return MPBROKER_BOOTSTRAP_SERVER; None if it is not set, or if MPBROKER_RUNTIME_DIR is set."""
    if os.environ.get(RUNTIME_DIR):
        return None
    return os.environ.get(BOOTSTRAP_SERVER) or None


def by_address(bootstrap: str) -> ControlClient:
    """Return a client of the broker at HOST:PORT (the first of several) or unix:/path. Raises CliError."""
    # Most calls name no address, and probes call often.
    from mpbroker.client.config import UNIX, parse_servers
    from mpbroker.client.errors import ClientConfigError

    try:
        host, port = parse_servers(bootstrap)[0]
    except ClientConfigError as error:
        raise CliError(f"-b: {error}", USAGE_ERROR) from error
    if host.startswith(UNIX):
        return by_path(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CliError(f"-b {bootstrap}: {host} cannot be resolved ({error.strerror})") from error
    if not any(is_of_this_host(one) for one in found):
        raise CliError(
            f"-b {bootstrap}: {host} is not an address of this host, where this command needs the broker",
            USAGE_ERROR,
        )
    return by_port(port)


def is_of_this_host(found: tuple[int, int, int, str, tuple[object, ...]]) -> bool:
    """Return whether a result of getaddrinfo is an address of this host, by binding a port of it."""
    family, kind, protocol, _, address = found
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.bind((address[0], 0))
        except OSError:
            return False
    return True


def by_log_dirs(log_dirs: str | None) -> ControlClient:
    """Find the broker by MPBROKER_RUNTIME_DIR, or else by its first log directory. Raises CliError."""
    # Not imported by probes that name the broker otherwise.
    from mpbroker.storage.names import STANDBY_FACE

    if runtime_dir := os.environ.get(RUNTIME_DIR):
        return ControlClient(Path(runtime_dir))
    directory = Path((log_dirs or "data").split(",")[0].strip())
    if _has_face(directory / STANDBY_FACE):
        directory /= STANDBY_FACE
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
            f"no broker is running on {directory.absolute()} (it has no {POINTER_NAME}); {_HOW_TO_NAME}"
        )
    named = Path(pointer.runtime_dir)
    if _is_copied(directory, named):
        raise CliError(
            f"no broker is running on {directory.absolute()}: its {POINTER_NAME} was copied from the "
            f"directory of another broker, which runs. Name that one with --log-dirs"
        )
    return ControlClient(named, owner=path.stat().st_uid)


def _has_face(directory: Path) -> bool:
    """Return whether a standby answers clients there: its broker runs in a directory of its own."""
    try:
        return has_broker(directory)
    except OSError:
        return False


def _is_copied(log_dir: Path, runtime_dir: Path) -> bool:
    """Return whether the pointer file is a copy: a broker runs in `runtime_dir`, but none on `log_dir`."""
    try:
        return not has_broker(log_dir) and is_locked(runtime_dir)
    except OSError:
        # The directory belongs to another user. The broker itself checks who may ask it.
        return False


def by_port(port: int) -> ControlClient:
    """Return a client of the supervisor of the broker that listens on a TCP port. Raises CliError."""
    owners = listening_owners(port)
    # A broker that starts has its port, and does not listen yet: of this user's own that is enough.
    found = _by_listener(owners or {os.getuid()}, lambda listener: port_of(listener) == port)
    if found is not None:
        return found
    if not owners:
        raise CliError(
            f"no process listens on port {port} of this host: start the broker, or name it with --log-dirs"
        )
    raise CliError(
        f"no broker that you may ask listens on port {port}: run this as its user, name its data directory "
        "with --log-dirs, or set MPBROKER_RUNTIME_DIR"
    )


def by_path(address: str) -> ControlClient:
    """Return a client of the supervisor of the broker that listens at unix:/path. Raises CliError."""
    try:
        owner = Path(address.removeprefix("unix:")).stat().st_uid
    except OSError as error:
        raise CliError(f"nothing listens at {address}: {error.strerror}") from error
    found = _by_listener({owner}, lambda listener: listener.partition("://")[2] == address)
    if found is None:
        raise CliError(
            f"no broker that you may ask listens at {address}: run this as its user, or name its data "
            "directory with --log-dirs"
        )
    return found


def _by_listener(owners: set[int], is_wanted: Callable[[str], bool]) -> ControlClient | None:
    """Return a client of the first broker that these users run and that has a wanted listener, or None."""
    for directory in _runtime_dirs():
        try:
            owner = directory.stat().st_uid
        except FileNotFoundError:
            # Its broker has just ended.
            continue
        # systemd has opened the port of a service; only root puts directories into /run.
        if owner not in owners and not (ROOT in owners and directory.is_relative_to("/run")):
            continue
        client = ControlClient(directory, PATIENCE_SECONDS, owner=owner)
        try:
            listeners = client.call("listeners")["listeners"]
        except ControlError:
            continue
        if any(is_wanted(one["listener"]) for one in listeners):
            return ControlClient(directory, owner=owner)
    return None


def listening_owners(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> set[int]:
    """Return the uids of the users whose sockets listen on a TCP port of this host."""
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
    """Return an error about a directory: a usage error if --log-dirs names it, else a runtime error."""
    given = "--log-dirs: " if log_dirs else "no broker is running here: "
    return CliError(
        f"{given}{directory.absolute()} {why}; {_HOW_TO_NAME}", USAGE_ERROR if log_dirs else RUNTIME_ERROR
    )
