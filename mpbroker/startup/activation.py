"""Listening sockets that the service manager passes to the broker: systemd's socket activation.

A socket serves the listener with the socket's name (FileDescriptorName=) or address. Connections wait in the
socket while no broker runs, so a restart refuses no client. (sd_listen_fds(3).)
"""

from __future__ import annotations

import ipaddress
import os
import socket

from msgspec import structs

from mpbroker.config.listeners import Listener
from mpbroker.ipc.process import FatalError

FIRST_FD = 3


class Inherited:
    """The sockets that the service manager has passed to this process.

    The LISTEN_* variables are removed from the environment, so that no child process uses them.
    """

    def __init__(self) -> None:
        pid = os.environ.pop("LISTEN_PID", "")
        count = os.environ.pop("LISTEN_FDS", "")
        names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
        self.sockets: list[tuple[str, socket.socket]] = []
        self.serving: set[str] = set()  # names of listeners
        if pid != str(os.getpid()) or not count.isdigit():
            return
        for number in range(int(count)):
            try:
                sock = socket.socket(fileno=FIRST_FD + number)
            except OSError as error:
                raise FatalError(
                    f"LISTEN_FDS={count}, but descriptor {FIRST_FD + number} is not a socket: "
                    f"{error.strerror}"
                ) from error
            sock.set_inheritable(False)
            self.sockets.append((names[number] if number < len(names) else "", sock))

    def take(self, listener: Listener) -> tuple[int, Listener] | None:
        """Return (fd of the listener's socket, listener with the socket's port); None if no socket is for it.

        The caller has to close the fd. Raises FatalError if the socket does not listen.
        """
        found = [
            (name, sock)
            for name, sock in self.sockets
            if name.upper() == listener.name or _is_at(sock, listener)
        ]
        if not found:
            return None
        name, sock = found[0]
        if not _listens(sock):
            raise FatalError(
                f"the socket {name!r} for listener {listener} does not listen: set ListenStream="
            )
        self.sockets.remove((name, sock))
        self.serving.add(listener.name)
        if not listener.path and sock.family != socket.AF_UNIX:
            listener = structs.replace(listener, port=sock.getsockname()[1])
        return sock.detach(), listener

    def refuse_rest(self) -> None:
        """Raise FatalError if a socket serves no listener, since its clients would wait forever."""
        if self.sockets:
            rest = ", ".join(f"{name or 'unnamed'} at {sock.getsockname()}" for name, sock in self.sockets)
            raise FatalError(
                f"the service manager passed sockets that are no listener's: {rest}. Give them the "
                "listener's name (FileDescriptorName=) or address, or add the listener"
            )


def _listens(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_at(sock: socket.socket, listener: Listener) -> bool:
    at = sock.getsockname()
    if sock.family == socket.AF_UNIX or listener.path:
        return sock.family == socket.AF_UNIX and at == listener.path
    if at[1] != listener.port:
        return False
    here = ipaddress.ip_address(at[0].partition("%")[0])
    if listener.is_wildcard:
        return here.is_unspecified
    try:
        return here == ipaddress.ip_address(listener.host)
    except ValueError:
        return str(here) in {info[4][0] for info in socket.getaddrinfo(listener.host, None)}
