"""The client of commands that send requests to a cluster, with the settings of --command-config."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpbroker.client import config
from mpbroker.client.admin import Admin
from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.client.errors import ClientConfigError
from mpbroker.config.properties import Entry

ADVICE = "does the broker run there? (--bootstrap-server)"
COMMAND_CONFIG = "--command-config"
# A user waits for a command, so it reports a missing connection within seconds.
OF_COMMANDS = ClientConfig(
    client_id="mpbroker-cli", retries_advertised=False, socket_connection_setup_timeout_ms=5_000
)


def open_admin(
    where: tuple[str, Path | None], base: ClientConfig = OF_COMMANDS, advice: str = ADVICE
) -> Admin:
    """Return a client for `where`: an address, and a file that overrides `base`. Raises ClientConfigError."""
    bootstrap, command_config = where
    with _flag_named():
        found = config.read_config(command_config, base, _warn)
    return Admin(Cluster(parse_servers(bootstrap), found, advice))


def read_entries(path: Path | None, flag: str = COMMAND_CONFIG) -> list[Entry]:
    """Read the properties of --command-config, or of another flag. Raises ClientConfigError."""
    with _flag_named(flag):
        return config.read_entries(path)


@contextmanager
def _flag_named(flag: str = COMMAND_CONFIG) -> Iterator[None]:
    try:
        yield
    except ClientConfigError as error:
        raise ClientConfigError(f"{flag} {error}") from error


def _warn(text: str) -> None:
    print(f"mpbroker: {text}", file=sys.stderr)
