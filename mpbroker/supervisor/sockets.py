"""The listening sockets, bound first and kept by the supervisor: a dead acceptor loses no backlog."""

from __future__ import annotations

import errno
import os
import socket

import psutil
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc.process import FatalError


def bind_all(config: BrokerConfig) -> tuple[list[int], BrokerConfig]:
    """Binds and listens everywhere; -> fds, and the configuration with the ports that port 0 became.

    Raises FatalError naming the listener, the reason, and who holds the port.
    """
    fds: list[int] = []
    bound: list[Listener] = []
    try:
        for listener in config.listeners:
            sock = _bind(listener, config)
            bound.append(structs.replace(listener, port=sock.getsockname()[1]))
            fds.append(sock.detach())
    except FatalError:
        for fd in fds:
            os.close(fd)
        raise
    return fds, structs.replace(config, listeners=tuple(bound))


def _bind(listener: Listener, config: BrokerConfig) -> socket.socket:
    host = listener.host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise FatalError(
            f"cannot listen on {listener}: host {host!r} cannot be resolved ({error.strerror})"
        ) from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.socket_receive_buffer_bytes != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
        sock.bind(address)
        sock.listen(config.socket_listen_backlog_size)
    except OSError as error:
        sock.close()
        raise FatalError(f"cannot listen on {listener}: {_why(error, listener.port)}") from error
    return sock


def _why(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(port)
        who = f" by {holder}" if holder else ""
        return f"the port is in use{who}. Stop it, or choose another port with --listeners"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges. Choose a port above 1023, or grant CAP_NET_BIND_SERVICE"
    return f"{error.strerror}"


def _holder(port: int) -> str:
    """The process that listens on the port, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.laddr
                and connection.laddr.port == port
                and connection.status == psutil.CONN_LISTEN
                and connection.pid
            ):
                holder = psutil.Process(connection.pid)
                # Of another broker the supervisor, not the child that is replaced when it is stopped.
                while (parent := holder.parent()) is not None and parent.name().startswith("mpbroker: "):
                    holder = parent
                return f"process {holder.pid} ({holder.name()})"
    except psutil.Error:
        return ""
    return ""
