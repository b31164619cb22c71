"""Shows keys and values by their schemas, from the registry in http.console.schema.registry.config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mpbroker.client.config import read_entries
from mpbroker.client.errors import ClientConfigError
from mpbroker.config.broker import BrokerConfig
from mpbroker.records.record import Record
from mpbroker.registry.json_values import Decoder, Shown
from mpbroker.registry.rest import Registry, open_schemas
from mpbroker.registry.schemas import MissingPackage, RegistryConfigError, RegistryUnavailable

# A visitor waits for the page.
ANSWERS_WITHIN_SECONDS: Final = 3.0


def decoder_of(config: BrokerConfig) -> Decoder | None:
    """Return the decoder of values with schemas; None without a registry. Raises ClientConfigError."""
    path = config.http_console_schema_registry_config
    if not path:
        return None
    settings = tuple((entry.key, entry.value) for entry in read_entries(Path(path)))
    try:
        return _decoder(settings)
    except RegistryConfigError as error:
        raise ClientConfigError(f"{path}: {error}") from error


@lru_cache(maxsize=1)
def _decoder(settings: tuple[tuple[str, str], ...]) -> Decoder:
    opened = open_schemas(dict(settings))
    if isinstance(opened, Registry):
        opened = replace(opened, tries=1, answers_within_seconds=ANSWERS_WITHIN_SECONDS)
    return Decoder(opened)


def add_json(
    rows: Iterable[dict[str, Any]], records: Mapping[tuple[int, int], Record], decoder: Decoder, most: int
) -> str:
    """Add "json", at most `most` bytes, and "schema" to each key and value in `rows` that names a schema.

    `records`: the rows' records by partition and offset. Returns why the registry could not be asked, or "".
    """
    for row in rows:
        record = records.get((row["partition"], row["offset"]))
        if record is None:
            continue
        try:
            for part, data in (("key", record.key), ("value", record.value)):
                shown = decoder.shown(data, record.headers, is_key=part == "key")
                if shown is not None:
                    row[part] |= _view(shown, most)
        except (RegistryUnavailable, MissingPackage) as error:
            return str(error)
    return ""


def _view(shown: Shown, most: int) -> dict[str, Any]:
    text = shown.json[:most].decode(errors="ignore")
    schema = {"id": shown.schema.id, "type": shown.schema.kind, "name": shown.name}
    return {"json": text, "json_cut": len(shown.json) > most, "schema": schema}
