"""Rules for topic names, and the names of internal topics.

(Kafka: Topic.validate, Topic.hasCollision, Topic.isInternal, Uuid.METADATA_TOPIC_ID.)
"""

from __future__ import annotations

import re
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]
"""The name of a topic and the number of a partition."""

NAME_LENGTH_MAX = 249

# The coordinator's log. No client sees it, so it is not one of the internal topics.
METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"
GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
# Clients see them marked as internal. The last of them is not implemented; its name is reserved.
INTERNAL_TOPICS = frozenset({GROUP_TOPIC, TRANSACTION_TOPIC, "__share_group_state"})
# The decisions of sinks that write exactly once. To brokers it is a topic as any other.
SINK_TOPIC = "__mpbroker_sinks"
# Topics that patterns do not match and lists for users do not show.
OWN_TOPICS = INTERNAL_TOPICS | {SINK_TOPIC}

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def problem_with(name: str) -> str | None:
    """Return why a topic cannot have this name, in Kafka's words; None if the name is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than "
            f"the max allowed length {NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str | None:
    """Return a key that is equal for names that collide in Kafka's metrics; None if `name` cannot collide."""
    return name.replace(".", "_") if "." in name or "_" in name else None
