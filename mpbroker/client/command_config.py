"""The file of --command-config: properties of a client, which Kafka's tools understand too."""

from __future__ import annotations

import sys
from pathlib import Path

from mpbroker.client.config import ClientConfig, from_properties, known_names
from mpbroker.client.errors import ConfigError
from mpbroker.config import known
from mpbroker.config.properties import Entry, PropertiesError, parse

# A user waits for a command, so it reports a missing connection within seconds.
OF_COMMANDS = ClientConfig(
    client_id="mpbroker-cli",
    retries_advertised=False,
    socket_connection_setup_timeout_ms=5_000,
)


def read_entries(path: Path | None) -> list[Entry]:
    """Read the properties, none if there is no file. Raises ConfigError."""
    if path is None:
        return []
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise ConfigError(f"--command-config {path}: {getattr(error, 'strerror', None) or error}") from error


def read_config(path: Path | None, base: ClientConfig = OF_COMMANDS) -> ClientConfig:
    """Read the settings of --command-config, which Kafka's tools understand too. Raises ConfigError.

    `base` has what the file does not say.
    """
    entries = read_entries(path)
    lines = {entry.key: entry.line for entry in entries}
    try:
        config, unknown = from_properties({entry.key: entry.value for entry in entries}, base)
    except ConfigError as error:
        line = f":{lines[error.name]}" if error.name else ""
        raise ConfigError(f"--command-config {path}{line}: {error}") from error
    for name in unknown:
        guess = known.hint([name], known_names())
        print(f"mpbroker: {path}:{lines[name]}: warning: {name} is ignored{guess}", file=sys.stderr)
    return config
