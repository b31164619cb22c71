"""What a topic may be called. (Kafka: Topic.validate, Topic.hasCollision.)"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def problem_with(name: str) -> str | None:
    """Why no topic can have the name, in Kafka's words; None if one can."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > LONGEST:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {LONGEST}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def collision(name: str, existing: Iterable[str]) -> str | None:
    """Another topic that differs only in periods and underscores: their metrics would get the same name."""
    if "." not in name and "_" not in name:
        return None
    plain = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == plain), None)
