"""The names of the resources that an administrative request acts on, such as topics, for the audit log.

Only names are logged: values of settings may be secrets, and salts, passwords and tokens are secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Any, Final, TypeAlias

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType, kafka_word
from mpbroker.security.audit import NAMES_MAX, Names
from mpbroker.security.scram import TYPES

# A name in parts, which are put together if it is shown.
Named: TypeAlias = Iterator[Iterable[object]]

_MECHANISMS: Final = {int(kind): name for name, kind in TYPES.items()}


def names_in(key: ApiKey, body: Any) -> Names:
    """Return the names of the topics, users or other resources that an administrative request acts on."""
    named = NAMES.get(key)
    found = Names.of(named(body)) if named is not None else Names()
    if getattr(body, "validate_only", False):
        return Names((*found.shown, "(only checked)"), found.more)
    return found


def _word(numbers: type[IntEnum], number: int) -> str:
    return next((kafka_word(one) for one in numbers if one == number), f"unknown ({number})")


def _topics(body: Any) -> Named:
    return ((topic.name,) for topic in body.topics)


def _deleted_topics(body: Any) -> Named:
    yield from ((name,) for name in body.topic_names)
    yield from ((one.name or one.topic_id.hex(),) for one in body.topics)


def _partitions(body: Any) -> Named:
    for topic in body.topics:
        yield from ((f"{topic.name}-{one.partition_index}",) for one in topic.partitions)


def _elected(body: Any) -> Named:
    for topic in body.topic_partitions or ():
        yield from ((f"{topic.topic}-{number}",) for number in topic.partitions)


def _moved(body: Any) -> Named:
    for one in body.dirs:
        for topic in one.topics:
            yield from ((f"{topic.name}-{number}", "to", one.path) for number in topic.partitions)


def _markers(body: Any) -> Named:
    for one in body.markers:
        result = "commit" if one.transaction_result else "abort"
        topics = (topic.name for topic in one.topics)
        yield ("producer", one.producer_id, result, *islice(topics, NAMES_MAX))


def _acls(body: Any) -> Named:
    for one in body.creations:
        yield (
            _word(Permission, one.permission_type),
            one.principal,
            "from",
            one.host,
            _word(Operation, one.operation),
            _word(PatternType, one.resource_pattern_type),
            _word(ResourceType, one.resource_type),
            one.resource_name,
        )


def _acl_filters(body: Any) -> Named:
    for one in body.filters:
        yield (
            _word(Permission, one.permission_type),
            "any" if one.principal_filter is None else one.principal_filter,
            "from",
            "any" if one.host_filter is None else one.host_filter,
            _word(Operation, one.operation),
            _word(PatternType, one.pattern_type_filter),
            _word(ResourceType, one.resource_type_filter),
            "any" if one.resource_name_filter is None else one.resource_name_filter,
        )


def _configs(body: Any) -> Named:
    for one in body.resources:
        kind = _word(ConfigResourceType, one.resource_type)
        yield (kind, f"{one.resource_name}:", *islice((config.name for config in one.configs), NAMES_MAX))


def _groups(body: Any) -> Named:
    return ((name,) for name in body.groups_names)


def _offsets(body: Any) -> Named:
    for named in _partitions(body):
        yield (body.group_id, *named)


def _quotas(body: Any) -> Named:
    for one in body.entries:
        entity = (f"{part.entity_type}={part.entity_name or '<default>'}" for part in one.entity)
        yield (*islice(entity, NAMES_MAX), *islice((op.key for op in one.ops), NAMES_MAX))


def _users(body: Any) -> Named:
    for one in (*body.deletions, *body.upsertions):
        yield (one.name, _MECHANISMS.get(one.mechanism, f"mechanism {one.mechanism}"))


def _features(body: Any) -> Named:
    return ((one.feature, "to", one.max_version_level) for one in body.feature_updates)


def _new_token(body: Any) -> Named:
    if body.owner_principal_name:
        yield (f"{body.owner_principal_type}:{body.owner_principal_name}",)
    yield from (("renewer", f"{one.principal_type}:{one.principal_name}") for one in body.renewers)


def _token_owners(body: Any) -> Named:
    return ((f"{one.principal_type}:{one.principal_name}",) for one in body.owners or ())


NAMES: Final[dict[ApiKey, Callable[[Any], Named]]] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.DELETE_RECORDS: _partitions,
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.CREATE_ACLS: _acls,
    ApiKey.DELETE_ACLS: _acl_filters,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moved,
    ApiKey.CREATE_PARTITIONS: _topics,
    ApiKey.CREATE_DELEGATION_TOKEN: _new_token,
    ApiKey.RENEW_DELEGATION_TOKEN: lambda _: iter(()),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda _: iter(()),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _token_owners,
    ApiKey.DELETE_GROUPS: _groups,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _partitions,
    ApiKey.OFFSET_DELETE: _offsets,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: lambda body: iter([("broker", body.broker_id)]),
}
