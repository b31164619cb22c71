"""Access control lists: the entries, filters that find entries, and checks of both.

Numbers and names are Kafka's. (Kafka: StandardAcl, AclBinding, AclBindingFilter, ResourcePatternFilter,
AccessControlEntryFilter; KIP-11, KIP-290.)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
"""As the name of a literal resource, all resources of its type; as a host, all hosts."""
WILDCARD_PRINCIPAL: Final = "User:*"
"""Every principal, whatever its type."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type CLUSTER."""


class ResourceType(IntEnum):
    """A type of resource. (Kafka: org.apache.kafka.common.resource.ResourceType.)"""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the resource name of an entry matches resources. ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """An operation on a resource. (Kafka: AclOperation.)"""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(IntEnum):
    """The permission of an access control entry: allow or deny. (Kafka: AclPermissionType.)"""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


# What can be done to a resource of each type (Kafka: AclEntry.supportedOperations).
OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    kind: tuple(Operation[name] for name in names.split())
    for kind, names in (
        (ResourceType.TOPIC, "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
        (ResourceType.GROUP, "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
        (
            ResourceType.CLUSTER,
            "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
        ),
        (ResourceType.TRANSACTIONAL_ID, "WRITE DESCRIBE"),
        (ResourceType.DELEGATION_TOKEN, "DESCRIBE"),
        (ResourceType.USER, "CREATE_TOKENS DESCRIBE_TOKENS"),
    )
}


class Acl(NamedTuple):
    """An access control entry. `principal` is `Type:name` or a wildcard, `host` an address or a wildcard."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        permission, operation = Permission(self.permission).name, Operation(self.operation).name
        kind, pattern = ResourceType(self.resource_type).name, PatternType(self.pattern_type).name
        return (
            f"{permission} {self.principal} from host {self.host} operation {operation} on "
            f"{pattern} {kind} {self.resource_name}"
        )


class BadAcl(ValueError):
    """An entry or a filter is invalid; the message is for the client."""


class AclFilter(NamedTuple):
    """A filter of entries. None and ANY accept every value; MATCH accepts patterns that cover the name."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def check(self) -> None:
        """Raise BadAcl if a number is not one of Kafka's. (Kafka: AclControlManager.validateFilter.)"""
        if not (_is_known(ResourceType, self.resource_type) and _is_known(PatternType, self.pattern_type)):
            raise BadAcl("Unknown patternFilter.")
        if not (_is_known(Operation, self.operation) and _is_known(Permission, self.permission)):
            raise BadAcl("Unknown entryFilter.")

    @property
    def is_exact(self) -> bool:
        """Return whether each field accepts one value only, so that at most one entry matches."""
        return (
            self.resource_type > ResourceType.ANY
            and None not in (self.resource_name, self.principal, self.host)
            and self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            and self.operation > Operation.ANY
            and self.permission > Permission.ANY
        )

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches the entry."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == acl.resource_name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD


def check_new(acl: Acl) -> None:
    """Raise BadAcl if an entry is not valid, before it is added.

    (Kafka: AclApis.handleCreateAcls, AclControlManager.validateNewAcl, SecurityUtils.parseKafkaPrincipal.)
    """
    if acl.resource_type not in OPERATIONS:
        raise BadAcl(f"Invalid resourceType {_named(ResourceType, acl.resource_type)}")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise BadAcl(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise BadAcl("Invalid empty resource name")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise BadAcl(f"Invalid patternType {_named(PatternType, acl.pattern_type)}")
    if acl.operation == Operation.ANY or not _is_known(Operation, acl.operation):
        raise BadAcl(f"Invalid operation {_named(Operation, acl.operation)}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise BadAcl(f"Invalid permissionType {_named(Permission, acl.permission)}")
    check_principal(acl.principal)


def check_principal(principal: str) -> None:
    """Raise BadAcl if the text does not have the form `Type:name`."""
    if ":" not in principal:
        raise BadAcl(f"expected a string in format principalType:principalName but got {principal}")


def kafka_word(number: IntEnum) -> str:
    """Return the name of an enumeration's member as Kafka's tools write it, such as `DescribeConfigs`."""
    return "".join(part.capitalize() for part in number.name.split("_"))


def _named(numbers: type[IntEnum], number: int) -> str:
    return numbers(number).name if _is_known(numbers, number) else "UNKNOWN"


def _is_known(numbers: type[IntEnum], number: int) -> bool:
    """Return whether `number` is a member of the enumeration other than UNKNOWN (0)."""
    return number != 0 and number in {*map(int, numbers)}
