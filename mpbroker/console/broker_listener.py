"""How the console reaches the broker: by the house's own client, through a listener, as a user of it.

So access control lists hold for the console as for any client. What it sees and does is what the user of
`http.console.client.config` may, or without that file whoever connects without a login.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mpbroker.client.admin import Admin, open_admin
from mpbroker.client.cluster_address import ClusterAddress
from mpbroker.client.command_config import read_config
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ConfigError
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener, is_loopback, parse_http_listener, reachable

CLIENT_ID = "mpbroker-console"
# Somebody looks at a page and waits.
REQUEST_TIMEOUT_MS = 10_000
PLAINTEXT = "PLAINTEXT"
_BASE = ClientConfig(client_id=CLIENT_ID, request_timeout_ms=REQUEST_TIMEOUT_MS)


class NoListener(Exception):
    """No listener takes the console in. The text says what to do."""


class BrokerListener(NamedTuple):
    """A listener of the broker, and the file with the settings that it asks for (None: none)."""

    listener: Listener
    settings: Path | None

    def client(self) -> Admin:
        """Return a client that is not connected yet. Raises ConfigError."""
        return open_admin(
            ClusterAddress(reachable(str(self.listener).partition("://")[2]), self.settings), _BASE
        )


def listener_of(config: BrokerConfig) -> BrokerListener:
    """Return the listener that the console takes. Raises NoListener, ConfigError."""
    settings = Path(config.http_console_client_config) if config.http_console_client_config else None
    protocol = PLAINTEXT if settings is None else read_config(settings).security_protocol
    fitting = [one for one in config.listeners if one.protocol == protocol]
    # A socket in the file system is the last choice: who may use it is said by its mode.
    fitting.sort(key=lambda one: (bool(one.path), one == config.control_plane))
    if fitting:
        return BrokerListener(fitting[0], settings)
    if settings is None:
        raise NoListener(
            "every listener asks for a login or TLS: name a file with the client settings of the console's "
            "user in http.console.client.config"
        )
    raise NoListener(f"no listener has security.protocol={protocol}, which {settings} says")


def needs_token(config: BrokerConfig) -> bool:
    """Return whether reading through the broker takes the token.

    It does not where every visitor could do the same by himself: the page is on loopback, and the console
    enters without a login by a port. Anything else would lend a visitor rights that he does not have.
    """
    address = parse_http_listener(config.http_listener)
    if address is None or not is_loopback(address.host) or config.http_console_client_config:
        return True
    try:
        return bool(listener_of(config).listener.path)
    except (NoListener, ConfigError):
        return True
