"""The entities of quotas, the quotas that an entity may have, and which quota limits a client.

An entity is a set of (type, name) pairs: a user, a client id, both, or an address. The name None means all
names without a quota of their own. (Kafka: ClientQuotaEntity, QuotaConfigs, ClientQuotaControlManager,
and ClientQuotaManager.DefaultQuotaCallback for the precedence.)
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
WHOLE_NUMBERS = {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE}
# The largest distance of a whole number from one: it travels as a double.
EPSILON = 1e-6

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) pairs sorted by type. The name None is the default of its type."""


class InvalidQuota(ValueError):
    """An entity or a quota is not valid. The client gets the text."""


class Limit(NamedTuple):
    """A budget and its bound. All clients with this `user` and `client_id` share the budget; "" means any."""

    user: str
    client_id: str
    bound: float


def entity_of(pairs: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity with these (type, name) pairs. Raises InvalidQuota if it cannot have quotas."""
    entity = tuple(sorted(pairs, key=lambda pair: pair[0]))
    types = [kind for kind, _ in entity]
    if not entity:
        raise InvalidQuota("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
        if types.count(kind) > 1:
            raise InvalidQuota(f"Entity type {kind} is given more than once")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
    if IP in types:
        if len(types) > 1:
            raise InvalidQuota("An ip cannot be combined with user or client-id")
        return ((IP, address_of(entity[0][1])),)
    return entity


def address_of(name: str | None) -> str | None:
    """Return the canonical text of an IP address; None stays None. Raises InvalidQuota for other texts."""
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise InvalidQuota(f"{name} is not an IP address; a quota cannot be for a host name.") from None


def check_quota(entity: Entity, key: str, value: float) -> None:
    """Check a quota of an entity. Raises InvalidQuota if its key or value is invalid for the entity."""
    if key not in (OF_ADDRESSES if entity[0][0] == IP else OF_CLIENTS):
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not (value > 0 and math.isfinite(value)):
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    if key in WHOLE_NUMBERS and abs(math.floor(value + EPSILON) - value) > EPSILON:
        raise InvalidQuota(f"Configuration {key} must be a whole number")


class MatchType(IntEnum):
    """How a filter of DescribeClientQuotas compares an entity's name: equal, the default, or any name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass
class QuotaTable:
    """All quotas of the cluster, as the metadata log has them."""

    _quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._quotas)

    def __iter__(self) -> Iterator[tuple[Entity, dict[str, float]]]:
        return iter(self._quotas.items())

    def copy(self) -> QuotaTable:
        """Return a copy. The dicts of quotas are shared, since they are replaced and never changed."""
        return QuotaTable(self._quotas.copy())

    def of(self, entity: Entity) -> dict[str, float]:
        """Return the quotas of exactly this entity, without inherited defaults."""
        return self._quotas.get(entity, {})

    def put(self, entity: Entity, values: dict[str, float]) -> None:
        """Replace all quotas of an entity. An empty dict removes the entity."""
        if values:
            self._quotas[entity] = values
        else:
            self._quotas.pop(entity, None)

    def change(self, entity: Entity, key: str, value: float | None) -> None:
        values = {name: old for name, old in self.of(entity).items() if name != key}
        if value is not None:
            values[key] = value
        self.put(entity, values)

    def matching(self, wanted: dict[str, tuple[MatchType, str | None]], strict: bool) -> Iterator[Entity]:
        """Yield the entities that match each type in `wanted` and, with `strict`, have no other type."""
        for entity in self._quotas:
            names = dict(entity)
            if strict and len(names) != len(wanted):
                continue
            if all(
                kind in names and (how is MatchType.SPECIFIED or names[kind] == name)
                for kind, (how, name) in wanted.items()
            ):
                yield entity

    def has(self, key: str) -> bool:
        """Return whether any entity has a quota with this key."""
        return any(key in values for values in self._quotas.values())

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client by Kafka's order of precedence, None if no quota limits it."""
        tags = self._budget(key, user, client_id)
        if tags is None:
            return None
        if all(tags):
            order = [(user, client_id), (user, None), (None, client_id), (None, None)]
            entities: list[Entity] = [((CLIENT_ID, c), (USER, u)) for u, c in order]
        elif tags[0]:
            entities = [((USER, user),), ((USER, None),)]
        else:
            entities = [((CLIENT_ID, client_id),), ((CLIENT_ID, None),)]
        for entity in entities:
            bound = self.of(entity).get(key)
            if bound is not None:
                return Limit(*tags, bound)
        return None

    def _budget(self, key: str, user: str, client_id: str) -> tuple[str, str] | None:
        """Return the (user, client id) of the client's budget, None if no quota applies; "" means any."""
        both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
        levels: list[tuple[Entity, tuple[str, str]]] = [
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), of_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), of_user),
            (((CLIENT_ID, client_id),), of_client),
            (((CLIENT_ID, None),), of_client),
        ]
        for entity, tags in levels:
            if key in self.of(entity):
                # A client without an id has no budget of its own: it uses its user's, if that has one.
                return tags if any(tags) else None
        return None
