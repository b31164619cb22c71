"""Translates names of APIs and errors, as tests write them, to numbers; makes unique topic names."""

from __future__ import annotations

import re
import uuid

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import NAME_LENGTH_MAX


def unique_name(beginning: str) -> str:
    """Return a unique topic name that begins with this text, in which invalid characters become hyphens."""
    end = f"-{uuid.uuid4().hex[:8]}"
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", beginning)[: NAME_LENGTH_MAX - len(end)].strip("-") + end


def api_key(name: str | int) -> int:
    """Return the key of an API by its name: `ListOffsets`, `LIST_OFFSETS` or `list_offsets`.

    Return a number unchanged. Raises ValueError for an unknown name.
    """
    if isinstance(name, int):
        return name
    by_name = {_plain(key.name): key for key in ApiKey}
    if _plain(name) not in by_name:
        raise ValueError(f"Kafka has no API {name!r}: name one such as Produce, Fetch or ListOffsets")
    return by_name[_plain(name)]


def error_code(name: str | int) -> int:
    """Return an error code by its name in Kafka's `Errors`; return a number unchanged. Raises ValueError."""
    if isinstance(name, int):
        return name
    try:
        return ErrorCode[name.upper()]
    except KeyError:
        raise ValueError(f"Kafka has no error {name!r}: name one such as NOT_LEADER_OR_FOLLOWER") from None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
