"""A broker that is reached in every way there is: IPv4, IPv6, a Unix-domain socket, and the control plane."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ops.bench.brokers import HOST, Mpbroker, free_port
from tests.support.polling import PATIENCE_S

IPV6_HOST = "::1"


class Listener(NamedTuple):
    """A listener of a broker that runs, and how it is reached."""

    name: str
    family: socket.AddressFamily
    address: str | tuple[str, int]

    def connect(self) -> socket.socket:
        """A connection that does not block."""
        sock = socket.socket(self.family)
        try:
            # Of a Unix-domain socket with a full backlog only who blocks is let in later.
            sock.settimeout(None if self.family == socket.AF_UNIX else PATIENCE_S)
            sock.connect(self.address)
            if self.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((IPV6_HOST, 0))
    except OSError:
        return False
    return True


@dataclass
class OpenBroker(Mpbroker):
    """A broker with a listener of each kind; on a machine without IPv6 that one is missing."""

    control_port: int = field(default_factory=free_port)
    ipv6_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        listeners = [
            f"PLAINTEXT://{HOST}:{self.port}",
            f"CONTROL://{HOST}:{self.control_port}",
            f"LOCAL://unix:{self.path}",
        ]
        if has_ipv6():
            listeners.append(f"SIX://[{IPV6_HOST}]:{self.ipv6_port}")
        protocols = ",".join(f"{one.partition(':')[0]}:PLAINTEXT" for one in listeners)
        self.flags = (
            *self.flags,
            *("--listeners", ",".join(listeners)),
            *("-o", f"listener.security.protocol.map={protocols}"),
            *("-o", "control.plane.listener.name=CONTROL"),
        )

    @property
    def path(self) -> Path:
        return self.runtime_dir.with_name(f"{self.runtime_dir.name}.sock")

    @property
    def listeners(self) -> list[Listener]:
        found = [
            Listener("PLAINTEXT", socket.AF_INET, self.address),
            Listener("CONTROL", socket.AF_INET, (HOST, self.control_port)),
            Listener("LOCAL", socket.AF_UNIX, str(self.path)),
        ]
        if has_ipv6():
            found.append(Listener("SIX", socket.AF_INET6, (IPV6_HOST, self.ipv6_port)))
        return found

    def kill(self) -> None:
        super().kill()
        self.path.unlink(missing_ok=True)
