"""The file of --command-config: properties of a client, which Kafka's tools understand too."""

from __future__ import annotations

from pathlib import Path

from mpbroker.client.errors import ConfigError
from mpbroker.config.properties import Entry, PropertiesError, parse


def read_entries(path: Path | None) -> list[Entry]:
    """Read the properties, none if there is no file. Raises ConfigError."""
    if path is None:
        return []
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise ConfigError(f"--command-config {path}: {getattr(error, 'strerror', None) or error}") from error
