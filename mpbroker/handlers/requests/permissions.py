"""The permissions that each API needs, in one table. docs/SECURITY.md has the same table.

A need is an operation on a resource of some type. Needs of the whole request are checked before its API is
called; their resource is the cluster, or is named by a field of the request. Needs of each thing that the
request names are checked where the API looks that thing up. (Kafka: KafkaApis, ControllerApis, AclApis;
docs/security, "Authorization and ACLs".)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.acls import CLUSTER_NAME, Operation, ResourceType, kafka_word


class Need(NamedTuple):
    operation: Operation
    resource_type: ResourceType

    @property
    def denied(self) -> ErrorCode:
        """The error for a client without this permission."""
        return DENIED[self.resource_type]

    def __str__(self) -> str:
        """Return the need as Kafka's documentation writes it, for instance `Read Topic`."""
        return f"{kafka_word(self.operation)} {kafka_word(self.resource_type)}"


class Rule(NamedTuple):
    """The needs of an API.

    `request`: needs of the whole request; its client must have all. `resource`: needs of each thing that the
    request names. `alternative`: a need that alone suffices. `Authorization.refusal` checks the alternative
    before the needs in `request`; the API checks it before those in `resource`. `remark`: exceptions, for
    docs/SECURITY.md. `is_admin`: the request is an act of administration, served on the listeners of
    admin.listener.names alone and written to the audit log.
    """

    request: tuple[Need, ...] = ()
    resource: tuple[Need, ...] = ()
    alternative: Need | None = None
    remark: str = ""
    is_admin: bool = False


DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

# The field of a request that names the resource of a need of the whole request.
_FIELDS: Final = {ResourceType.GROUP: "group_id", ResourceType.TRANSACTIONAL_ID: "transactional_id"}

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_CLUSTER, _TRANSACTION = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_TOKEN, _USER = ResourceType.DELEGATION_TOKEN, ResourceType.USER

READ_TOPIC: Final = Need(Operation.READ, _TOPIC)
WRITE_TOPIC: Final = Need(Operation.WRITE, _TOPIC)
CREATE_TOPIC: Final = Need(Operation.CREATE, _TOPIC)
DELETE_TOPIC: Final = Need(Operation.DELETE, _TOPIC)
ALTER_TOPIC: Final = Need(Operation.ALTER, _TOPIC)
DESCRIBE_TOPIC: Final = Need(Operation.DESCRIBE, _TOPIC)
DESCRIBE_TOPIC_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _TOPIC)
ALTER_TOPIC_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _TOPIC)
READ_GROUP: Final = Need(Operation.READ, _GROUP)
DELETE_GROUP: Final = Need(Operation.DELETE, _GROUP)
DESCRIBE_GROUP: Final = Need(Operation.DESCRIBE, _GROUP)
DESCRIBE_GROUP_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _GROUP)
ALTER_GROUP_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _GROUP)
CREATE_CLUSTER: Final = Need(Operation.CREATE, _CLUSTER)
DELETE_CLUSTER: Final = Need(Operation.DELETE, _CLUSTER)
ALTER_CLUSTER: Final = Need(Operation.ALTER, _CLUSTER)
DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, _CLUSTER)
CLUSTER_ACTION: Final = Need(Operation.CLUSTER_ACTION, _CLUSTER)
DESCRIBE_CLUSTER_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _CLUSTER)
ALTER_CLUSTER_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _CLUSTER)
IDEMPOTENT_WRITE: Final = Need(Operation.IDEMPOTENT_WRITE, _CLUSTER)
WRITE_TRANSACTION: Final = Need(Operation.WRITE, _TRANSACTION)
DESCRIBE_TRANSACTION: Final = Need(Operation.DESCRIBE, _TRANSACTION)
DESCRIBE_TOKEN: Final = Need(Operation.DESCRIBE, _TOKEN)
CREATE_TOKENS: Final = Need(Operation.CREATE_TOKENS, _USER)
DESCRIBE_TOKENS: Final = Need(Operation.DESCRIBE_TOKENS, _USER)

RULES: Final[dict[ApiKey, Rule]] = {
    ApiKey.PRODUCE: Rule(
        resource=(WRITE_TOPIC, WRITE_TRANSACTION),
        remark="the transactional id counts if records are transactional",
    ),
    ApiKey.FETCH: Rule(
        resource=(READ_TOPIC,),
        remark="checked again at each poll of a fetch that waits; a follower needs ClusterAction Cluster "
        "in place of it",
    ),
    ApiKey.LIST_OFFSETS: Rule(resource=(DESCRIBE_TOPIC,)),
    ApiKey.METADATA: Rule(
        resource=(DESCRIBE_TOPIC,),
        remark="Create Topic or Create Cluster to create it; denied topics are left out of a list of all",
    ),
    ApiKey.OFFSET_COMMIT: Rule(request=(READ_GROUP,), resource=(READ_TOPIC,)),
    ApiKey.OFFSET_FETCH: Rule(
        resource=(DESCRIBE_GROUP, DESCRIBE_TOPIC), remark="topics denied are left out where all are asked for"
    ),
    ApiKey.FIND_COORDINATOR: Rule(resource=(DESCRIBE_GROUP, DESCRIBE_TRANSACTION)),
    ApiKey.JOIN_GROUP: Rule(request=(READ_GROUP,)),
    ApiKey.HEARTBEAT: Rule(request=(READ_GROUP,)),
    ApiKey.LEAVE_GROUP: Rule(request=(READ_GROUP,)),
    ApiKey.SYNC_GROUP: Rule(request=(READ_GROUP,)),
    ApiKey.DESCRIBE_GROUPS: Rule(resource=(DESCRIBE_GROUP,)),
    ApiKey.LIST_GROUPS: Rule(
        resource=(DESCRIBE_GROUP,), alternative=DESCRIBE_CLUSTER, remark="groups denied are left out"
    ),
    ApiKey.SASL_HANDSHAKE: Rule(),
    ApiKey.API_VERSIONS: Rule(),
    ApiKey.CREATE_TOPICS: Rule(
        resource=(CREATE_TOPIC,),
        alternative=CREATE_CLUSTER,
        remark="settings and numbers of the new topic are returned to clients with DescribeConfigs Topic",
        is_admin=True,
    ),
    ApiKey.DELETE_TOPICS: Rule(
        resource=(DELETE_TOPIC, DESCRIBE_TOPIC),
        alternative=DELETE_CLUSTER,
        remark="by id Delete is enough; without Describe the answer has no name",
        is_admin=True,
    ),
    ApiKey.DELETE_RECORDS: Rule(resource=(DELETE_TOPIC,), is_admin=True),
    ApiKey.INIT_PRODUCER_ID: Rule(
        request=(WRITE_TRANSACTION,),
        remark="without a transactional id: IdempotentWrite Cluster, or Write on any topic",
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Rule(resource=(DESCRIBE_TOPIC,), alternative=CLUSTER_ACTION),
    ApiKey.ADD_PARTITIONS_TO_TXN: Rule(
        request=(WRITE_TRANSACTION,),
        resource=(WRITE_TOPIC,),
        remark="if a topic is denied, OPERATION_NOT_ATTEMPTED for the others",
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Rule(request=(WRITE_TRANSACTION, READ_GROUP)),
    ApiKey.END_TXN: Rule(request=(WRITE_TRANSACTION,)),
    ApiKey.WRITE_TXN_MARKERS: Rule(request=(ALTER_CLUSTER,), alternative=CLUSTER_ACTION, is_admin=True),
    ApiKey.TXN_OFFSET_COMMIT: Rule(request=(WRITE_TRANSACTION, READ_GROUP), resource=(READ_TOPIC,)),
    ApiKey.DESCRIBE_ACLS: Rule(request=(DESCRIBE_CLUSTER,)),
    ApiKey.CREATE_ACLS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DELETE_ACLS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DESCRIBE_CONFIGS: Rule(
        resource=(DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS, DESCRIBE_CLUSTER_CONFIGS),
        remark="by the type of the resource; brokers, loggers and client metrics are of the cluster",
    ),
    ApiKey.ALTER_CONFIGS: Rule(
        resource=(ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS),
        remark="as DescribeConfigs",
        is_admin=True,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DESCRIBE_LOG_DIRS: Rule(request=(DESCRIBE_CLUSTER,)),
    ApiKey.SASL_AUTHENTICATE: Rule(),
    ApiKey.CREATE_PARTITIONS: Rule(resource=(ALTER_TOPIC,), is_admin=True),
    ApiKey.CREATE_DELEGATION_TOKEN: Rule(
        resource=(CREATE_TOKENS,),
        remark="for another owner; nobody needs a permission for a token of its own",
        is_admin=True,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Rule(remark="owner and renewers alone may", is_admin=True),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Rule(remark="owner and renewers alone may", is_admin=True),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Rule(
        resource=(DESCRIBE_TOKEN, DESCRIBE_TOKENS),
        remark="one of them, for tokens that the client neither owns nor requested nor may renew; "
        "tokens denied are left out",
        is_admin=True,
    ),
    ApiKey.DELETE_GROUPS: Rule(resource=(DELETE_GROUP,), is_admin=True),
    ApiKey.ELECT_LEADERS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Rule(
        resource=(ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS),
        remark="as DescribeConfigs",
        is_admin=True,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Rule(request=(DESCRIBE_CLUSTER,)),
    ApiKey.OFFSET_DELETE: Rule(request=(DELETE_GROUP,), resource=(READ_TOPIC,), is_admin=True),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Rule(request=(DESCRIBE_CLUSTER_CONFIGS,)),
    ApiKey.ALTER_CLIENT_QUOTAS: Rule(request=(ALTER_CLUSTER_CONFIGS,), is_admin=True),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Rule(request=(DESCRIBE_CLUSTER,)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DESCRIBE_QUORUM: Rule(request=(DESCRIBE_CLUSTER,)),
    ApiKey.UPDATE_FEATURES: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DESCRIBE_CLUSTER: Rule(remark="authorized operations are for clients with Describe Cluster"),
    ApiKey.DESCRIBE_PRODUCERS: Rule(resource=(READ_TOPIC,)),
    ApiKey.UNREGISTER_BROKER: Rule(request=(ALTER_CLUSTER,), is_admin=True),
    ApiKey.DESCRIBE_TRANSACTIONS: Rule(
        resource=(DESCRIBE_TRANSACTION, DESCRIBE_TOPIC), remark="topics denied are left out"
    ),
    ApiKey.LIST_TRANSACTIONS: Rule(resource=(DESCRIBE_TRANSACTION,), remark="ids denied are left out"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Rule(
        request=(READ_GROUP,),
        resource=(DESCRIBE_TOPIC,),
        remark="one denied topic refuses the whole request; regular expressions match, for all members of "
        "the group, what the member may Describe whose heartbeat looks them up",
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Rule(
        resource=(DESCRIBE_GROUP, DESCRIBE_TOPIC),
        remark="a group with a denied topic is refused, without members",
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Rule(request=(DESCRIBE_CLUSTER_CONFIGS,)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Rule(
        resource=(DESCRIBE_TOPIC,), remark="denied topics are left out of a list of all"
    ),
}

# The APIs that are served on the listeners of admin.listener.names alone.
ADMINISTRATION: Final = frozenset(key for key, rule in RULES.items() if rule.is_admin)


def name_in(body: object, key: ApiKey, kind: ResourceType) -> str | None:
    """Return the name of the resource of this kind that the whole request is about; None if it has none."""
    if kind == ResourceType.CLUSTER:
        return CLUSTER_NAME
    field = _FIELDS[kind]
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        field = f"v3_and_below_{field}"
    name: str | None = getattr(body, field)
    return name
