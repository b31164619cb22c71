"""Authorization: decides by access control lists whether a client may do an operation.

The rules are from Kafka's StandardAuthorizer (KIP-801). A super user may do everything. An entry that
denies takes precedence over all entries that allow. If a resource has no entries, the setting
allow.everyone.if.no.acl.found decides. For other resources a client needs an entry that allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.acls import (
    OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

# Being allowed one of these is being allowed to describe. Being denied one is not being denied that.
_DESCRIBING: Final = (
    Operation.DESCRIBE,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.ALL,
)
_DESCRIBING_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL)
# A name that no resource is likely to have (Kafka: Authorizer.authorizeByResourceType).
_MADE_UP_NAME: Final = "hardcode"


def super_users_in(text: str) -> list[str]:
    """Return the principals in the text of super.users, where semicolons separate them."""
    return [one.strip() for one in text.split(";") if one.strip()]


class Client(NamedTuple):
    """The sender of a request: `principal` is written `Type:name`, `host` is an address as text."""

    principal: str
    host: str


class Reason(Enum):
    """The reason for a decision that no single entry explains."""

    SUPER_USER = "super user"
    NO_ENTRY = "no entry is about the resource"
    NO_ALLOWING_ENTRY = "no entry allows it"


class Verdict(NamedTuple):
    """A decision, and the entry or the reason that led to it."""

    is_allowed: bool
    rule: Acl | Reason


class Authorizer:
    """All access control entries, indexed by resource, so that a decision reads only a few of them.

    It reads the entries for the resource's name, for the wildcard, and for prefixes of the name. A prefix is
    looked up only if there is a prefixed entry of the same length.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._no_entry = Verdict(allow_if_no_acl, Reason.NO_ENTRY)
        self._entries: dict[Acl, None] = {}
        self._by_name: dict[tuple[int, int, str], dict[Acl, None]] = {}
        self._prefix_lengths: dict[int, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._entries)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._by_name.clear()
        self._prefix_lengths.clear()

    def put(self, acl: Acl) -> None:
        """Add an entry if it does not exist yet."""
        if acl in self._entries:
            return
        self._entries[acl] = None
        key = acl.resource_type, acl.pattern_type, acl.resource_name
        named = self._by_name.setdefault(key, {})
        if not named and acl.pattern_type == PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        named[acl] = None

    def remove(self, acl: Acl) -> None:
        """Remove an entry if it exists."""
        if acl not in self._entries:
            return
        del self._entries[acl]
        key = acl.resource_type, acl.pattern_type, acl.resource_name
        named = self._by_name[key]
        del named[acl]
        if named:
            return
        del self._by_name[key]
        if acl.pattern_type == PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.resource_name)] -= 1
            if not lengths[len(acl.resource_name)]:
                del lengths[len(acl.resource_name)]

    def find(self, question: AclFilter) -> list[Acl]:
        """Return the entries that the filter `question` matches."""
        return [acl for acl in self._entries if question.matches(acl)]

    def authorize(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> Verdict:
        """Return whether the client may do `operation` to the resource of this type and name, and why."""
        if client.principal in self._super_users:
            return Verdict(True, Reason.SUPER_USER)
        allowing: Acl | None = None
        is_about = False
        for acl in self._about(kind, name):
            is_about = True
            if not (_is_of(acl, client) and _applies(acl, operation)):
                continue
            if acl.permission == Permission.DENY:
                return Verdict(False, acl)
            allowing = allowing or acl
        if allowing is not None:
            return Verdict(True, allowing)
        return Verdict(False, Reason.NO_ALLOWING_ENTRY) if is_about else self._no_entry

    def _about(self, kind: int, name: str) -> Iterator[Acl]:
        """Yield the entries that match a resource, whatever their principals are."""
        literal = self._by_name.get((kind, PatternType.LITERAL, name))
        if literal:
            yield from literal
        if name != WILDCARD:
            yield from self._by_name.get((kind, PatternType.LITERAL, WILDCARD), ())
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                yield from self._by_name.get((kind, PatternType.PREFIXED, name[:length]), ())

    def authorize_any(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may do `operation` to at least one resource of the type.

        An entry for another operation, except ALL, does not count. (Kafka: authorizeByResourceType.)
        """
        if self.authorize(client, operation, kind, _MADE_UP_NAME).is_allowed:
            return True
        denied: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: list[Acl] = []
        for acl in self._entries:
            if acl.resource_type != kind or acl.operation not in (operation, Operation.ALL):
                continue
            if not _is_of(acl, client):
                continue
            if acl.permission == Permission.ALLOW:
                allowed.append(acl)
            else:
                denied[acl.pattern_type].add(acl.resource_name)
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        return any(not _is_dominated(acl, denied) for acl in allowed)

    def operations(self, client: Client, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may do to a resource, as a bit mask by number (KIP-430)."""
        if client.principal in self._super_users:
            return sum(1 << operation for operation in OPERATIONS[kind])
        about = list(self._about(kind, name))
        theirs = [acl for acl in about if _is_of(acl, client)]
        by_default = self._no_entry.is_allowed and not about
        return sum(
            1 << operation for operation in OPERATIONS[kind] if by_default or _is_allowed(theirs, operation)
        )


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """Return the configured authorizer, still without entries; None if none is configured."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        super_users_in(config.super_users), allow_if_no_acl=config.allow_everyone_if_no_acl_found
    )


def _is_of(acl: Acl, client: Client) -> bool:
    return acl.principal in (client.principal, WILDCARD_PRINCIPAL) and acl.host in (client.host, WILDCARD)


def _is_allowed(acls: list[Acl], operation: Operation) -> bool:
    """Return whether these entries, which all match a client and a resource, allow an operation."""
    permissions = {acl.permission for acl in acls if _applies(acl, operation)}
    return permissions == {Permission.ALLOW}


def _applies(acl: Acl, operation: Operation) -> bool:
    """Return whether the entry covers the operation, directly or by implication. (Kafka: findResult.)"""
    if acl.permission == Permission.ALLOW:
        if operation == Operation.DESCRIBE:
            return acl.operation in _DESCRIBING
        if operation == Operation.DESCRIBE_CONFIGS:
            return acl.operation in _DESCRIBING_CONFIGS
    return acl.operation in (operation, Operation.ALL)


def _is_dominated(acl: Acl, denied: dict[int, set[str]]) -> bool:
    """Return whether `denied`, names by pattern type, denies everything that the entry `acl` allows."""
    name = acl.resource_name
    if acl.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if name in denied[PatternType.LITERAL]:
            return True
    return any(name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(name) + 1))
