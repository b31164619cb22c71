"""Upper bounds of the bytes that topics, settings, quotas and ACLs take in a base of the bulletin.

A change is refused if the base could become too large to announce. In MessagePack the header of an array, a
string or a map has at most five bytes, and a number at most nine. `mpbroker/ipc/metadata.py` has the structs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mpbroker.security.acls import Acl

_STRING_BYTES: Final = 5
_TOPIC_BYTES: Final = 48
"""Bytes of a topic without its partitions, settings and name."""
_ENTITY_BYTES: Final = 12
_NUMBER_BYTES: Final = 9
PARTITION_BYTES: Final = 8
NAME_BYTES_MAX: Final = 1024
"""The longest user, client id, principal or host. Kafka sets no bound; here every handler holds them all."""


def topic_bytes(name: str, partitions: int, configs: Mapping[str, str]) -> int:
    settings = sum(config_bytes(key, value) for key, value in configs.items())
    return _TOPIC_BYTES + len(name.encode()) + partitions * PARTITION_BYTES + settings


def config_bytes(name: str, value: str | None) -> int:
    """Return the bytes of one setting of a topic or a broker; 0 if `value` is None (not set)."""
    return 0 if value is None else _text_bytes(name) + _text_bytes(value)


def brokers_bytes(brokers: Mapping[str, Mapping[str, str]]) -> int:
    """Return the bytes of all altered settings of brokers."""
    return sum(config_bytes(key, value) for configs in brokers.values() for key, value in configs.items())


def quota_bytes(entity: Iterable[tuple[str, str | None]], values: Mapping[str, float]) -> int:
    """Return the bytes of an entity with its quotas; 0 if the entity has no quotas."""
    if not values:
        return 0
    names = sum(1 + _text_bytes(kind) + _text_bytes(name or "") for kind, name in entity)
    return _ENTITY_BYTES + names + sum(_text_bytes(key) + _NUMBER_BYTES for key in values)


def acl_bytes(acl: Acl) -> int:
    """Return the bytes of an access control entry."""
    texts = sum(map(_text_bytes, (acl.resource_name, acl.principal, acl.host)))
    return _ENTITY_BYTES + texts + 4 * _NUMBER_BYTES


def _text_bytes(text: str) -> int:
    return _STRING_BYTES + len(text.encode())
