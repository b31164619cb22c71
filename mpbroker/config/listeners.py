"""Listeners: `NAME://host:port` or `NAME://unix:/path`. The security protocol follows from the name.

The rules are from Kafka's `SocketServerConfigs.listenerListToEndPoints`: names are upper-cased and
unique; ports are unique except for port 0 and for one IPv4 plus one IPv6 literal on the same port;
`advertised.listeners` may repeat ports. An empty host is the wildcard.
"""

import ipaddress
import re

import msgspec

from mpbroker.config.keys import listed
from mpbroker.config.protocols import PROTOCOLS

DEFAULT_PROTOCOL_MAP = {protocol: protocol for protocol in PROTOCOLS}
META_ADDRESSES = ("0.0.0.0",)
WILDCARDS = ("", "0.0.0.0", "::")
# Where this host reaches each of them.
LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}
PORT_MAX = 65535
# The number of listeners that a broker may serve in its life.
MAX_LISTENERS = 256
# sockaddr_un.sun_path, with the zero at its end (unix(7)).
PATH_BYTES_MAX = 107

_UNIX = re.compile(r"(?P<name>[^:/]+)://unix:(?P<path>/[^,]+)")
_LISTENER = re.compile(
    r"(?P<name>[^:/]+)://(\[(?P<ipv6>[0-9a-zA-Z\-%._:]*)\]|(?P<host>[0-9a-zA-Z\-%._]*)):(?P<port>[0-9]{1,10})"
)

LOCAL_NAME = "localhost"


class Listener(msgspec.Struct, frozen=True):
    """An address to listen on or to advertise. Host "" means every address of the machine."""

    name: str
    protocol: str
    host: str
    port: int
    path: str = ""  # of a Unix-domain socket, which has neither host nor port

    @property
    def is_wildcard(self) -> bool:
        """Return whether the listener listens on every address of the machine."""
        return not self.path and self.host in WILDCARDS

    def __str__(self) -> str:
        if self.path:
            return f"{self.name}://unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,…`. Raises ValueError, which names the wrong entry."""
    protocols: dict[str, str] = {}
    for entry in listed(text):
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not name:
            raise ValueError(f"'{entry}' is not NAME:PROTOCOL")
        if protocol not in PROTOCOLS:
            raise ValueError(
                f"'{protocol}' is not a security protocol; it must be one of {', '.join(PROTOCOLS)}"
            )
        if name in protocols:
            raise ValueError(f"listener name {name} is mapped twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(
    text: str, protocols: dict[str, str], *, unique_ports: bool = True
) -> tuple[Listener, ...]:
    """Parse a comma-separated list of listeners. Raises ValueError, which names the wrong listener."""
    listeners = tuple(_parse_one(entry, protocols) for entry in listed(text))
    if not listeners:
        raise ValueError("at least one listener must be given, such as PLAINTEXT://127.0.0.1:9092")
    check_all(listeners, unique_ports=unique_ports)
    return listeners


def parse_http_listener(text: str) -> Listener | None:
    """Parse the address `host:port` of the HTTP server. Return None for "". Raises ValueError."""
    if not text:
        return None
    match = _LISTENER.fullmatch(f"HTTP://{text}")
    if match is None:
        raise ValueError("it must be host:port, such as 127.0.0.1:9644, IPv6 addresses in brackets")
    return _parse_one(f"HTTP://{text}", {"HTTP": "PLAINTEXT"})


def parse_host_port(text: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT. An IPv6 host is in brackets; HOST may be "". Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > PORT_MAX:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return host, int(port)


def port_of(listener: str) -> int | None:
    """Return the port of NAME://HOST:PORT; None for NAME://unix:/PATH."""
    try:
        return parse_host_port(listener.partition("://")[2])[1]
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or the name localhost. Other names count as remote."""
    try:
        return host == LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable(address: str) -> str:
    """Return the address at which clients on this host reach HOST:PORT: loopback if HOST is a wildcard.

    A socket path is returned unchanged.
    """
    try:
        host, port = parse_host_port(address)
    except ValueError:
        return address
    return f"{LOOPBACKS[host]}:{port}" if host in LOOPBACKS else address


def page_url(address: str) -> str:
    """Return the URL at which a browser on this host reaches the HTTP server at HOST:PORT."""
    return f"http://{reachable(address)}/"


def check_all(listeners: tuple[Listener, ...], *, unique_ports: bool = True) -> None:
    """Raise ValueError if two listeners have the same name, path or (with `unique_ports`) port."""
    names = [listener.name for listener in listeners]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"each listener must have a different name; {name} comes {names.count(name)} times"
            )
    paths = [listener.path for listener in listeners if listener.path]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"each listener must have a different path; {path} comes twice")
    if unique_ports:
        _check_ports(listeners)


def _parse_one(entry: str, protocols: dict[str, str]) -> Listener:
    unix = _UNIX.fullmatch(entry)
    match = unix or _LISTENER.fullmatch(entry)
    if match is None:
        raise ValueError(
            f"'{entry}' is not a listener; write NAME://host:port, IPv6 addresses in brackets, "
            "or NAME://unix:/path"
        )
    name = match["name"].strip().upper()
    if name not in protocols:
        raise ValueError(
            f"listener {name} has no security protocol; map it in listener.security.protocol.map, "
            f"for example {name}:PLAINTEXT"
        )
    if unix is not None:
        if len(unix["path"].encode()) > PATH_BYTES_MAX:
            raise ValueError(f"'{entry}': a socket's path has at most {PATH_BYTES_MAX} bytes")
        return Listener(name, protocols[name], "", 0, unix["path"])
    port = int(match["port"])
    if port > PORT_MAX:
        raise ValueError(f"'{entry}' has port {port}; ports end at {PORT_MAX}")
    if match["ipv6"] and not _is_address(match["ipv6"], 6):
        raise ValueError(f"'{entry}': '{match['ipv6']}' is not an IPv6 address")
    return Listener(name, protocols[name], match["ipv6"] or match["host"] or "", port)


def _check_ports(listeners: tuple[Listener, ...]) -> None:
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for port, same in by_port.items():
        one_of_each = (
            len(same) == 2
            and any(_is_address(listener.host, 4) for listener in same)
            and any(_is_address(listener.host, 6) for listener in same)
        )
        if len(same) > 1 and not one_of_each:
            names = ", ".join(str(listener) for listener in same)
            raise ValueError(
                f"each listener must have a different port; {port} is used by {names} "
                "(only one IPv4 and one IPv6 address may share a port)"
            )


def _is_address(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version == version
    except ValueError:
        return False
