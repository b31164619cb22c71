"""Ids of 16 bytes as text, as Kafka writes them into files, errors and logs. (Kafka: common.Uuid.)"""

from __future__ import annotations

import base64
from typing import Final

RESERVED_IDS: Final = 100
"""Ids below this number have a meaning of their own in Kafka (Uuid.RESERVED, DirectoryId)."""


def is_reserved(value: bytes) -> bool:
    return int.from_bytes(value) < RESERVED_IDS


def may_be_given_out(value: bytes) -> bool:
    """Return whether a new id may have this value. As in Kafka, the text of an id has no leading dash."""
    return not (is_reserved(value) or uuid_text(value).startswith("-"))


def uuid_text(value: bytes) -> str:
    """Return the id as URL-safe Base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id from its text. Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"an id has 16 bytes, {text!r} has {len(value)}")
    return value
