"""`mpbroker acl`: access control lists of a broker, by DescribeAcls, CreateAcls and DeleteAcls.

Flags have the same meaning as in kafka-acls.sh.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import ClusterAddress, DryRun, Json, Yes, flag, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_rows, say_each
from mpbroker.client.acls import (
    ANY,
    EVERYTHING,
    check_host,
    check_is_principal,
    create,
    delete,
    describe,
    document,
    filter_of,
    operation_of,
)
from mpbroker.protocol import messages as m
from mpbroker.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    kafka_word,
)

acl_app = App(no_args_is_help=True)
# The operations of --producer and --consumer.
_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)
_TRANSACTIONAL: Final = (Operation.WRITE, Operation.DESCRIBE)

Prefixed = Annotated[bool, flag("--prefixed", "The names are prefixes of names, and none of them is *.")]


class Resources(NamedTuple):
    """The flags that name resources."""

    topics: Annotated[list[str] | None, option("--topic", "NAME", "A topic, * for all; repeatable.")] = None
    groups: Annotated[
        list[str] | None, option("--group", "NAME", "A consumer group, * for all; repeatable.")
    ] = None
    transactional_ids: Annotated[
        list[str] | None, option("--transactional-id", "ID", "* for all; repeatable.")
    ] = None
    delegation_tokens: Annotated[
        list[str] | None, option("--delegation-token", "ID", "A delegation token, * for all; repeatable.")
    ] = None
    user_principals: Annotated[
        list[str] | None,
        option("--user-principal", "User:NAME", "Whose delegation tokens, * for all; repeatable."),
    ] = None
    cluster: Annotated[bool, flag("--cluster", "The cluster itself.")] = False

    def each(self, *, are_prefixes: bool = False) -> list[tuple[ResourceType, str, PatternType]]:
        """Return type, name and pattern type of each resource. Raises CliError if no flag names one.

        `are_prefixes`: all names except the cluster's are prefixes.
        """
        pattern = PatternType.PREFIXED if are_prefixes else PatternType.LITERAL
        named = (
            (ResourceType.TOPIC, self.topics),
            (ResourceType.GROUP, self.groups),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
            (ResourceType.DELEGATION_TOKEN, self.delegation_tokens),
            (ResourceType.USER, self.user_principals),
        )
        found = [(kind, name, pattern) for kind, names in named for name in names or ()]
        if are_prefixes and any(name == WILDCARD for _, name, _ in found):
            raise CliError(
                "--prefixed: * is not a prefix of names; leave out --prefixed for all", USAGE_ERROR
            )
        if self.cluster:
            found.append((ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
        if not found:
            others = "--transactional-id, --delegation-token, --user-principal or --cluster"
            raise CliError(f"say what for: --topic, --group, {others}", USAGE_ERROR)
        return found


class Principals(NamedTuple):
    """The flags that name principals to allow or deny, and hosts. No hosts means all hosts."""

    allowed: Annotated[
        list[str] | None, option("--allow-principal", "User:NAME", "User:* for all; repeatable.")
    ] = None
    denied: Annotated[
        list[str] | None, option("--deny-principal", "User:NAME", "Wins over all that allow.")
    ] = None
    hosts: Annotated[
        list[str] | None, option("--host", "ADDRESS", "Clients at this address; default: all.")
    ] = None

    def each(self) -> list[tuple[str, str, Permission]]:
        """Return principal, host and permission of each ACL entry. Raises CliError, InvalidArgument."""
        pairs = [(one, Permission.ALLOW) for one in self.allowed or ()]
        pairs += [(one, Permission.DENY) for one in self.denied or ()]
        if not pairs:
            raise CliError("say for whom: --allow-principal or --deny-principal", USAGE_ERROR)
        for principal, _ in pairs:
            check_is_principal(principal)
        for host in self.hosts or ():
            of_flag("--host", host, check_host)
        return [(one, host, what) for one, what in pairs for host in self.hosts or [WILDCARD]]


class AclOperations(NamedTuple):
    """The flags that name operations, one by one or as the sets of --producer and --consumer."""

    operations: Annotated[
        list[str] | None, option("--operation", "NAME", "Read, Write, Create, Describe, All …; repeatable.")
    ] = None
    is_producer: Annotated[
        bool, flag("--producer", "Write, Describe and Create of topics; Write of transactional ids.")
    ] = False
    is_consumer: Annotated[
        bool, flag("--consumer", "Read and Describe of topics, Read of groups; needs both.")
    ] = False
    is_idempotent: Annotated[bool, flag("--idempotent", "IdempotentWrite of the cluster.")] = False

    def on(self, kind: ResourceType) -> list[Operation]:
        """Return the operations that the flags name for this type of resource."""
        found = [operation_of(name) for name in self.operations or ()]
        if self.is_producer:
            of_producer = {ResourceType.TOPIC: _PRODUCER, ResourceType.TRANSACTIONAL_ID: _TRANSACTIONAL}
            found += of_producer.get(kind, ())
        if self.is_consumer:
            of_consumer = {ResourceType.TOPIC: _CONSUMER, ResourceType.GROUP: (Operation.READ,)}
            found += of_consumer.get(kind, ())
        return list(dict.fromkeys(found))


@acl_app.command("add")
def acl_add(
    *,
    resources: Resources,
    prefixed: Prefixed = False,
    whom: Principals,
    what: AclOperations,
    dry_run: DryRun = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Allow principals to do something, or deny it."""
    acls = _entries(resources, whom, what, are_prefixes=prefixed)
    with open_admin(where) as client:
        if dry_run:
            there = set(describe(client, EVERYTHING))
            _say([("is there already" if acl in there else "would add", acl) for acl in acls], as_json=json)
            return
        create(client, acls)
    _say([("added", acl) for acl in acls], as_json=json)


@acl_app.command("remove")
def acl_remove(
    *,
    resources: Resources,
    prefixed: Prefixed = False,
    whom: Principals,
    what: AclOperations,
    dry_run: DryRun = False,
    yes: Yes = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Remove access control lists.

    Removes what `add` with the same flags adds; without a principal, all lists of these resources.
    """
    filters = _filters(resources, whom, what, are_prefixes=prefixed)
    if not dry_run:
        confirm("remove the ACLs that match? --dry-run lists them", is_sure=yes)
    with open_admin(where) as client:
        if dry_run:
            matching = dict.fromkeys(acl for one in filters for acl in describe(client, one))
            _say([("would remove", acl) for acl in matching], as_json=json)
            _check_any(matching)
            return
        removed = delete(client, filters)
    _say([("removed", acl) for acl in removed], as_json=json)
    _check_any(removed)


@acl_app.command("list")
def acl_list(
    *,
    resources: Resources,
    principal: Annotated[str | None, option("--principal", "User:NAME", "Only entries that name it.")] = None,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """List access control lists.

    With a topic, group or id, this includes lists for its prefixes and for all names.
    """
    if principal is not None:
        check_is_principal(principal)
    named = resources.each() if any(resources) else [(ResourceType.ANY, None, PatternType.ANY)]
    one = m.DeleteAclsRequest.DeleteAclsFilter
    with open_admin(where) as client:
        found = [
            acl
            for kind, name, _ in named
            for acl in describe(client, one(kind, name, PatternType.MATCH, principal, None, *ANY))
        ]
    print_rows(list(map(document, dict.fromkeys(found))), as_json=json, nothing="no ACLs")


def _check_sets(resources: Resources, what: AclOperations) -> None:
    """Raise CliError if --producer or --consumer lacks a resource that it needs (Kafka: AclCommand)."""
    if what.is_consumer and not (resources.topics and resources.groups):
        raise CliError("--consumer needs --topic and --group", USAGE_ERROR)
    if what.is_producer and not (resources.topics or resources.transactional_ids):
        raise CliError("--producer needs --topic or --transactional-id", USAGE_ERROR)


def _entries(resources: Resources, whom: Principals, what: AclOperations, *, are_prefixes: bool) -> list[Acl]:
    """Return the ACLs that the flags describe. Raises CliError if a resource type lacks the operation."""
    _check_sets(resources, what)
    if what.is_idempotent and not resources.cluster:
        resources = resources._replace(cluster=True)
    made: list[Acl] = []
    for kind, name, pattern in resources.each(are_prefixes=are_prefixes):
        operations = what.on(kind)
        if what.is_idempotent and kind == ResourceType.CLUSTER:
            operations.append(Operation.IDEMPOTENT_WRITE)
        if not operations:
            raise CliError(f"say what may be done to {kafka_word(kind)} {name}: --operation", USAGE_ERROR)
        for operation in operations:
            if operation != Operation.ALL and operation not in OPERATIONS[kind]:
                possible = ", ".join(map(kafka_word, (*OPERATIONS[kind], Operation.ALL)))
                text = (
                    f"a {kafka_word(kind)} has no operation {kafka_word(operation)}; it is one of {possible}"
                )
                raise CliError(text, USAGE_ERROR)
            made += [
                Acl(kind, name, pattern, principal, host, operation, permission)
                for principal, host, permission in whom.each()
            ]
    return list(dict.fromkeys(made))


def _say(done: list[tuple[str, Acl]], *, as_json: bool) -> None:
    """Print ACLs, each with an outcome such as "added" or "would remove"."""
    say_each([(f"{what}: {acl}", {"done": what, **document(acl)}) for what, acl in done], as_json=as_json)


def _check_any(found: Iterable[Acl]) -> None:
    if not list(found):
        raise CliError("no ACL matches; mpbroker acl list shows all")


def _filters(
    resources: Resources, whom: Principals, what: AclOperations, *, are_prefixes: bool
) -> list[m.DeleteAclsRequest.DeleteAclsFilter]:
    """Return filters that match the flags' ACLs, of any principal if no flag names one. Raises CliError."""
    one = m.DeleteAclsRequest.DeleteAclsFilter
    if whom.allowed or whom.denied:
        return [filter_of(acl) for acl in _entries(resources, whom, what, are_prefixes=are_prefixes)]
    if whom.hosts or any(what):
        whose = "say for whom: --allow-principal or --deny-principal"
        text = f"{whose}; without them all about a resource is removed"
        raise CliError(text, USAGE_ERROR)
    named = resources.each(are_prefixes=are_prefixes)
    return [one(kind, name, pattern, None, None, *ANY) for kind, name, pattern in named]
