"""The listening sockets. The supervisor binds and keeps them, so that a dead acceptor loses no backlog.

Addresses are bound first, so that a start fails if a port is in use. Sockets listen when all processes that
serve them are ready. Until then the kernel refuses clients, so that a probe of the port does not report a
recovering broker as ready (KAFKA-14658; SocketServer.scala). Unix-domain sockets and sockets of the service
manager listen from the beginning, and early clients wait.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc import titles
from mpbroker.ipc.process import FatalError
from mpbroker.startup.activation import Inherited
from mpbroker.storage.directory_lock import LOCK_PATIENCE_S, LOCK_POLL_S

# A listener's socket belongs to the broker's user and group.
SOCKET_UMASK = 0o117
ADDRESS_ADVICE = "Name an address of this machine; addresses for clients go into advertised.listeners"
# Connections that wait for the exporter, which serves fewer than that.
HTTP_BACKLOG = 64
# Errors of an address that this machine does not have, or of IPv6 on a machine without it.
NOT_OF_THIS_MACHINE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


def bind_all(config: BrokerConfig, inherited: Inherited | None = None) -> tuple[list[int], BrokerConfig]:
    """Bind all listeners. Return (their fds, the configuration with real ports in place of port 0).

    Call `listen` for each listener later. Raises FatalError, which names the listener, the reason, and the
    process that has the port.
    """
    fds: list[int] = []
    bound: list[Listener] = []
    try:
        for listener in config.listeners:
            taken = inherited.take(listener) if inherited else None
            fd, listening = taken or bind(listener, config.listeners, config, listens=False)
            fds.append(fd)
            bound.append(listening)
    except FatalError:
        release(fds, bound, inherited)
        raise
    return fds, structs.replace(config, listeners=tuple(bound))


def release(fds: Iterable[int], listeners: Iterable[Listener], inherited: Inherited | None = None) -> None:
    """Close the sockets of a failed start. Remove their paths, except those made by the service manager."""
    for fd, listener in zip(fds, listeners, strict=True):
        os.close(fd)
        if inherited is None or listener.name not in inherited.serving:
            remove_path(listener)


def bind(
    listener: Listener, among: tuple[Listener, ...], config: BrokerConfig, *, listens: bool = True
) -> tuple[int, Listener]:
    """Bind a listener. Return (fd of its socket, the listener with the socket's port). Raises FatalError.

    `among` has all listeners of the broker. If `listens` is False, call `listen` later.
    """
    if listener.path:
        return _bind_path(listener, config).detach(), listener
    # "::" takes IPv4 clients too, unless their address has a listener of its own on the same port.
    is_shared = listener.port != 0 and sum(other.port == listener.port for other in among) > 1
    sock = _bind_address(listener, config, v6_only=is_shared)
    listening = structs.replace(listener, port=sock.getsockname()[1])
    # Linux lets others with this option bind the port, too, until a socket listens.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    fd = sock.detach()
    if listens:
        listen(fd, listening, config)
    return fd, listening


def listen(fd: int, listener: Listener, config: BrokerConfig) -> None:
    """Listen on a bound socket, unless it listens already. Raises FatalError; the socket then stays open."""
    sock = socket.socket(fileno=fd)
    try:
        if not listener.path and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            # The next start must not wait for connections of this one that end (TIME_WAIT).
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.listen(config.socket_listen_backlog_size)
    except OSError as error:
        # Another process bound the port, too, and listened first.
        why = _why(error, listener.port, "--listeners")
        raise FatalError(f"cannot listen on {listener}: {why}") from error
    finally:
        sock.detach()


def bind_http(listener: Listener, config: BrokerConfig) -> tuple[int, str]:
    """Bind the socket that serves HTTP. Return (its fd, its address as HOST:PORT). Raises FatalError.

    The socket listens at once, so that requests wait in its backlog until the exporter runs.
    """
    sock = _bind_address(listener, config, v6_only=False, flag="--http")
    sock.listen(HTTP_BACKLOG)
    listening = structs.replace(listener, port=sock.getsockname()[1])
    return sock.detach(), str(listening).partition("://")[2]


def _bind_address(
    listener: Listener, config: BrokerConfig, *, v6_only: bool, flag: str = "--listeners"
) -> socket.socket:
    for family, address in (places := _places(listener)):
        sock = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6_only)
            if config.socket_receive_buffer_bytes != -1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
            _bind(sock, address)
        except OSError as error:
            if sock is not None:
                sock.close()
            if error.errno in NOT_OF_THIS_MACHINE and (family, address) != places[-1]:
                continue
            raise FatalError(f"cannot listen on {listener}: {_why(error, listener.port, flag)}") from error
        else:
            return sock
    raise AssertionError(f"no address for {listener}")


def _bind(sock: socket.socket, address: Any) -> None:
    """Bind a socket. If a remaining child of a killed broker may have the port, wait briefly for its end.

    Raises OSError.
    """
    begun = time.monotonic()
    while True:
        try:
            sock.bind(address)
            return
        except OSError as error:
            is_late = time.monotonic() - begun >= LOCK_PATIENCE_S
            if error.errno != errno.EADDRINUSE or is_late or not _may_end(address[1]):
                raise
        time.sleep(LOCK_POLL_S)


def _places(listener: Listener) -> list[tuple[socket.AddressFamily, Any]]:
    """Return (family, address) to try, in this order. The first address that this machine has is used.

    The wildcard has an IPv6 and an IPv4 address. A host name's IPv4 addresses come first, as in Java.
    Raises FatalError.
    """
    if not listener.host:
        return [(socket.AF_INET6, ("::", listener.port)), (socket.AF_INET, ("0.0.0.0", listener.port))]
    try:
        found = socket.getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise FatalError(
            f"cannot listen on {listener}: host {listener.host!r} cannot be resolved ({error.strerror}). "
            f"{ADDRESS_ADVICE}"
        ) from error
    return sorted(
        ((family, address) for family, _, _, _, address in found),
        key=lambda place: place[0] != socket.AF_INET,
    )


def _bind_path(listener: Listener, config: BrokerConfig) -> socket.socket:
    """Bind a Unix-domain socket. Replace a socket that a killed broker has left, but not a socket in use.

    Raises FatalError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(SOCKET_UMASK)
    try:
        if _is_abandoned(listener.path):
            Path(listener.path).unlink()
        sock.bind(listener.path)
        sock.listen(config.socket_listen_backlog_size)
    except OSError as error:
        sock.close()
        why = error.strerror
        if error.errno == errno.EADDRINUSE:
            why = "the path is in use, or is not a socket: remove it, or choose another path"
        raise FatalError(f"cannot listen on {listener}: {why}") from error
    finally:
        os.umask(mask)
    return sock


def _is_abandoned(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # missing, or not readable for us: bind reports which
    return False


def remove_path(listener: Listener) -> None:
    """Remove a Unix-domain listener's path, after its socket is closed. Do nothing for other listeners."""
    if listener.path:
        Path(listener.path).unlink(missing_ok=True)


def _why(error: OSError, port: int, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = "a process that does not listen yet, or that this user may not see"
        if (found := _holder(port)) is not None:
            holder = "process {} ({})".format(*found)
        return f"the port is in use by {holder}. Stop it, or choose another port with {flag}"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges. Choose a port above 1023, or grant CAP_NET_BIND_SERVICE"
    if error.errno in NOT_OF_THIS_MACHINE:
        return f"{error.strerror}. {ADDRESS_ADVICE}"
    return f"{error.strerror}"


def _may_end(port: int) -> bool:
    """Return whether the process that has the port may be a remaining child of a killed broker."""
    found = _holder(port)
    return found is None or titles.is_left_over(found[1])


def _holder(port: int) -> tuple[int, str] | None:
    """Return (pid, name) of the process that listens on the port, or of its supervisor; None if unknown."""
    try:
        import psutil  # a start that succeeds does not need it
    except ImportError:  # the environment was replaced under a running broker
        return None
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.laddr
                and connection.laddr.port == port
                and connection.status == psutil.CONN_LISTEN
                and connection.pid
            ):
                holder = psutil.Process(connection.pid)
                # Name another broker's supervisor, not a child that is replaced when it is stopped.
                while (parent := holder.parent()) is not None and titles.is_of_broker(parent.name()):
                    holder = parent
                return holder.pid, holder.name()
    except psutil.Error:
        return None
    return None
