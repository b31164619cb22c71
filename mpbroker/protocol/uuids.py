"""Ids of 16 bytes as text, as Kafka writes them into files, errors and logs. (Kafka: common.Uuid.)"""

from __future__ import annotations

import base64


def uuid_text(value: bytes) -> str:
    """Return the id as URL-safe Base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id from its text. Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"an id has 16 bytes, {text!r} has {len(value)}")
    return value
