"""The console's connection to the broker: through a listener, as a client.

So access control lists apply to the console as to any client. The console has the rights of the user in
`http.console.client.config`, or without that file the rights of a client without a login.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers, read_config
from mpbroker.client.errors import ClientConfigError
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener, is_loopback, parse_http_listener, reachable

CLIENT_ID = "mpbroker-console"
# A visitor waits for the page.
REQUEST_TIMEOUT_MS = 10_000
PLAINTEXT = "PLAINTEXT"
_BASE = ClientConfig(client_id=CLIENT_ID, request_timeout_ms=REQUEST_TIMEOUT_MS)


log = logging.getLogger("mpbroker.exporter")


@cache
def _warn(text: str) -> None:
    """Log a warning, each text only once."""
    log.warning("%s", text)


class NoListener(Exception):
    """The broker has no listener that the console can use. The text has advice."""


class BrokerListener(NamedTuple):
    """A listener of the broker, and the file with the settings for its clients, or None."""

    listener: Listener
    settings: Path | None

    def client(self) -> Admin:
        """Return a client that is not connected yet. Raises ClientConfigError."""
        servers = parse_servers(reachable(str(self.listener).partition("://")[2]))
        return Admin(Cluster(servers, read_config(self.settings, _BASE, _warn)))


def listener_of(config: BrokerConfig) -> BrokerListener:
    """Return the listener that the console connects to. Raises NoListener, ClientConfigError."""
    settings = Path(config.http_console_client_config) if config.http_console_client_config else None
    protocol = PLAINTEXT if settings is None else read_config(settings, _BASE, _warn).security_protocol
    fitting = [one for one in config.listeners if one.protocol == protocol]
    # A socket in the file system is the last choice: its mode decides who may use it.
    fitting.sort(key=lambda one: (bool(one.path), one == config.control_plane))
    if fitting:
        return BrokerListener(fitting[0], settings)
    if settings is None:
        raise NoListener(
            "every listener asks for a login or TLS: name a file with the client settings of the console's "
            "user in http.console.client.config"
        )
    raise NoListener(f"no listener has security.protocol={protocol} of {settings}")


def needs_token(config: BrokerConfig) -> bool:
    """Return whether a request must have the console's token to read through the broker.

    No token is needed if every visitor has the console's rights anyway: the console serves its page only on
    loopback, and connects to a port of the broker without a login. In any other case, a visitor without the
    token would get rights that only the console has.
    """
    address = parse_http_listener(config.http_listener)
    if address is None or not is_loopback(address.host) or config.http_console_client_config:
        return True
    try:
        return bool(listener_of(config).listener.path)
    except (NoListener, ClientConfigError):
        return True
