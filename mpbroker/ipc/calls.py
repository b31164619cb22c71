"""Messages between handlers, coordinator and log process: msgpack in the block of a CALL or ANSWER.

A call is answered exactly once with its answer type or with `Failed`; `error` fields are Kafka error codes.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from mpbroker.ipc.acls import AclFilterImage, AclImage
from mpbroker.ipc.credentials import ScramImage


class Failed(Struct, tag="failed"):
    """The answer of a callee that could not serve the call."""

    error: int
    message: str


class CreateTopic(Struct):
    """A topic to create; -1 partitions or replicas stand for the broker's default.

    `assignments` maps partitions to broker ids, or is empty.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: dict[int, list[int]] = {}
    configs: dict[str, str | None] = {}

    def partitions_asked(self, default: int) -> int:
        """Return how many partitions the topic would take, before anything is checked."""
        if self.assignments:
            return len(self.assignments)
        return default if self.partitions == -1 else self.partitions


class Account(Struct):
    """The client whose quota is charged for creations and deletions.

    `strict`: refuse what the quota does not cover.
    """

    user: str
    client_id: str
    strict: bool = False


class CreateTopics(Struct, tag="create_topics"):
    """handler -> coordinator: create topics.

    `automatic`: requested by Metadata, so an existing topic is not an error. `beside`: partitions that the
    request asks for in other calls.
    """

    topics: list[CreateTopic]
    validate_only: bool = False
    automatic: bool = False
    account: Account | None = None
    beside: int = 0


class CreatedTopic(Struct):
    name: str
    error: int = 0
    message: str | None = None
    topic_id: bytes = bytes(16)
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class CreatedTopics(Struct, tag="created_topics"):
    topics: list[CreatedTopic]
    throttle_ms: int = 0


class DeleteTopics(Struct, tag="delete_topics"):
    """handler -> coordinator: delete topics, by name or by id."""

    names: list[str] = []
    ids: list[bytes] = []
    account: Account | None = None


class DeletedTopic(Struct):
    name: str | None
    topic_id: bytes
    error: int = 0
    message: str | None = None


class DeletedTopics(Struct, tag="deleted_topics"):
    topics: list[DeletedTopic]
    throttle_ms: int = 0


class ConfigChange(Struct, array_like=True):
    """One change of a setting.

    `operation` is as in IncrementalAlterConfigs (mpbroker.protocol.numbers.ConfigOperation).
    """

    name: str
    operation: int
    value: str | None = None


class ConfigAlteration(Struct):
    """Changes to the settings of a resource. `kind` is the number of its type in the protocol.

    A broker resource with the name "" stands for all brokers.

    `replaces`: also remove all altered settings that `changes` does not name (AlterConfigs).
    """

    name: str
    changes: list[ConfigChange]
    replaces: bool = False
    kind: int = 2


class AlterSettings(Struct, tag="alter_settings"):
    """handler -> coordinator: alter settings. An error in one topic or broker does not affect the others."""

    alterations: list[ConfigAlteration]
    validate_only: bool = False


class ReadSettings(Struct, tag="read_settings"):
    """handler -> coordinator: read the settings of groups and of subscriptions to client metrics.

    `resources`: type and name of each, None for all that have settings.
    """

    resources: list[tuple[int, str]] | None = None


class SettingsRead(Struct, tag="settings_read"):
    """The answer to ReadSettings: (type, name, settings) of each resource."""

    resources: list[tuple[int, str, dict[str, str]]]


class MorePartitions(Struct):
    """A topic that is to have `count` partitions in all.

    `assignments`: the broker ids of each new partition; None if the broker may choose.
    """

    name: str
    count: int
    assignments: list[list[int]] | None = None


class CreatePartitions(Struct, tag="create_partitions"):
    """handler -> coordinator: add partitions. An error in one topic does not affect the others."""

    topics: list[MorePartitions]
    validate_only: bool = False
    account: Account | None = None


class AlteredResources(Struct, tag="altered_resources"):
    """The result of alterations: (error, message) of each topic or broker, in the order asked.

    It is sent when all handlers can see the changes.
    """

    results: list[tuple[int, str | None]]
    throttle_ms: int = 0


class QuotaAlteration(Struct):
    """Changes to one entity's quotas. `entity`: (type, name) pairs, None for a default.

    `changes` maps a quota to its value; None removes it.
    """

    entity: list[tuple[str, str | None]]
    changes: dict[str, float | None]


class AlterQuotas(Struct, tag="alter_quotas"):
    """handler -> coordinator: alter quotas. An error in one entity does not affect the others."""

    alterations: list[QuotaAlteration]
    validate_only: bool = False


class AlteredQuotas(Struct, tag="altered_quotas"):
    """The answer to AlterQuotas: (error, message) of each alteration, in the order asked.

    It is sent when all handlers can see the changes.
    """

    results: list[tuple[int, str | None]]


class AllocateProducerIds(Struct, tag="allocate_producer_ids"):
    """handler -> coordinator: allocate a block of producer ids, durably before the answer."""


class ProducerIds(Struct, tag="producer_ids"):
    first: int
    count: int


class ForwardedRequest(Struct, tag="forwarded_request"):
    """handler -> coordinator: a request about a group or a transaction (Kafka's Envelope, KIP-590).

    `body` is as the client sent it in this version of the API, without its header. The answer may take long:
    a JoinGroup waits until the group has a new generation. Answered by ForwardedResponse, MalformedRequest or
    Failed.
    """

    api_key: int
    version: int
    client_id: str
    client_host: str
    body: bytes


class ForwardedResponse(Struct, tag="forwarded_response"):
    """The answer to a ForwardedRequest.

    `body`: the response in the version of the request, without its header. `errors`: how often it has each
    error code.
    """

    body: bytes
    errors: dict[int, int]


class MalformedRequest(Struct, tag="malformed_request"):
    """The answer when the body of a ForwardedRequest does not parse as its API and version."""

    reason: str


class CheckTransaction(Struct, tag="check_transaction"):
    """handler -> coordinator: may a producer append to these partitions in its transaction? (KIP-890)

    `adds`: add the partitions that the transaction lacks, durably. Answered by CheckedTransaction, or Failed.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]
    adds: bool


class CheckedTransaction(Struct, tag="checked_transaction"):
    """The answer to CheckTransaction. `errors`: one for each partition, in their order.

    `hold`: number of a hold. The transaction ends only after EndHold reports that the checked batches are
    appended or lost. 0: there is no hold; the log refuses a late batch by its epoch.
    """

    errors: list[int]
    hold: int = 0


class EndHold(Struct, tag="end_hold"):
    """handler -> coordinator: end a hold (see CheckedTransaction). Answered by Acknowledged."""

    hold: int


class HoldsEnded(Struct, tag="holds_ended"):
    """handler -> coordinator: this handler needs none of the holds that earlier coordinators gave it.

    Sent once to each coordinator, soon after its start. Answered by Acknowledged.
    """


class Abandon(Struct, tag="abandon"):
    """handler -> coordinator: the client of the ForwardedRequest with this number has disconnected.

    The changes that the request has made stay, but it no longer waits. Both calls get an answer.
    """

    request: int


class AlterScram(Struct, tag="alter_scram"):
    """handler -> coordinator: credentials to set, and (user, mechanism) of those to remove."""

    upsertions: list[ScramImage] = []
    deletions: list[tuple[str, int]] = []


class ScramUser(Struct):
    """The result of a user's alterations, or the user's credentials as (mechanism, iterations)."""

    user: str
    error: int = 0
    message: str | None = None
    credentials: list[tuple[int, int]] = []


class DescribeScram(Struct, tag="describe_scram"):
    """handler -> coordinator: describe the credentials of these users; None means all users."""

    users: list[str] | None = None


class ScramUsers(Struct, tag="scram_users"):
    users: list[ScramUser]


class CreateAcls(Struct, tag="create_acls"):
    """handler -> coordinator: entries to create; answered by AlteredResources, a result for each."""

    acls: list[AclImage]


class DeleteAcls(Struct, tag="delete_acls"):
    """handler -> coordinator: delete the entries that these filters match; answered by DeletedAcls."""

    filters: list[AclFilterImage]


class DeletedAclsOfFilter(Struct):
    """The result of one filter of DeleteAcls: the entries that it deleted, or an error."""

    error: int = 0
    message: str | None = None
    acls: list[AclImage] = []


class DeletedAcls(Struct, tag="deleted_acls"):
    """The answer to DeleteAcls: a result for each filter, in their order."""

    results: list[DeletedAclsOfFilter]


class TokenDetails(Struct, array_like=True):
    """A delegation token as its owner sees it. Principals are written `User:name`."""

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        """Return a text without the HMAC, which is a password."""
        return f"TokenDetails({self.token_id}, owner={self.owner})"


class CreateToken(Struct, tag="create_token"):
    """handler -> coordinator: create a delegation token; answered by CreatedToken.

    `max_lifetime_ms`: 0 or less means the longest lifetime that the broker allows.
    """

    owner: str
    requester: str
    renewers: list[str]
    max_lifetime_ms: int


class CreatedToken(Struct, tag="created_token"):
    """The answer to CreateToken, sent when clients can log in with the token."""

    error: int = 0
    token: TokenDetails | None = None


class ChangeToken(Struct, tag="change_token"):
    """handler -> coordinator: renew the token with this HMAC or, if `expires`, let it expire in `period_ms`.

    A negative period lets the token expire now. A renewal without a period lasts as long as the broker
    allows. Answered by ChangedToken.
    """

    hmac: bytes
    requester: str
    period_ms: int
    expires: bool = False

    def __repr__(self) -> str:
        """Return a text without the HMAC, which is a password."""
        return f"ChangeToken({self.requester}, {self.period_ms}, expires={self.expires})"


class ChangedToken(Struct, tag="changed_token"):
    """The answer to ChangeToken. `token_id` is for the log: the client did not name it."""

    error: int = 0
    expires_ms: int = -1
    token_id: str = ""


class DescribeTokens(Struct, tag="describe_tokens"):
    """handler -> coordinator: describe tokens of these principals (None: of all), with ids after `after`.

    Answered by DescribedTokens.
    """

    owners: list[str] | None
    after: str = ""


class DescribedTokens(Struct, tag="described_tokens"):
    """The answer to DescribeTokens. If `are_all` is false, ask again for the tokens after the last one."""

    error: int = 0
    tokens: list[TokenDetails] = []
    are_all: bool = True


class RemoveExpiredTokens(Struct, tag="remove_expired_tokens"):
    """The coordinator to itself: remove tokens that have expired. Answered by RemovedTokens."""


class RemovedTokens(Struct, tag="removed_tokens"):
    """The answer to RemoveExpiredTokens: the ids of removed tokens; empty if no expired token is left."""

    token_ids: list[str]


class EnsureTopic(Struct, tag="ensure_topic"):
    """coordinator -> log: open or create these partitions. Idempotent; answered when they take appends.

    Partitions from `new_from` on cannot have had records yet (Kafka: isNew). Another partition that is not
    found counts as missing; no empty one replaces it. A partition with generation 0 in the answer has no slot
    at the moment; ask for it again.
    """

    name: str
    topic_id: bytes
    partitions: list[int]
    configs: dict[str, str] = {}
    config_version: int = 0
    new_from: int | None = None


class EnsuredPartition(Struct):
    partition: int
    slot: int = 0
    slot_generation: int = 0
    error: int = 0
    message: str | None = None


class EnsuredTopic(Struct, tag="ensured_topic"):
    topic_id: bytes
    partitions: list[EnsuredPartition]


class RemoveTopic(Struct, tag="remove_topic"):
    """coordinator -> log: make these partitions unreachable now and delete their files later. Idempotent."""

    name: str
    topic_id: bytes


class RemovedTopic(Struct, tag="removed_topic"):
    topic_id: bytes


class DeleteBefore(Struct, array_like=True):
    """Delete the records below `offset` of the partition in this slot; -1 means all durable ones."""

    slot: int
    slot_generation: int
    offset: int


class DeleteRecords(Struct, tag="delete_records"):
    """handler -> log: delete records."""

    partitions: list[DeleteBefore]


class DeletedBefore(Struct, array_like=True):
    """The result for one partition. `log_start`: its new log start offset, which is durable."""

    error: int
    log_start: int = -1


class DeletedRecords(Struct, tag="deleted_records"):
    """The results of DeleteRecords, in the order asked."""

    partitions: list[DeletedBefore]


class PartitionProducers(Struct, array_like=True):
    """The slot of a partition whose producers are asked for."""

    slot: int
    slot_generation: int


class TellProducers(Struct, tag="tell_producers"):
    """handler -> log: describe the active producers of these partitions."""

    partitions: list[PartitionProducers]


class ActiveProducer(Struct, array_like=True):
    """A producer of a partition. `open_from`: the first offset of its open transaction, or -1."""

    id: int
    epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int
    open_from: int


class ProducersOfPartition(Struct, array_like=True):
    error: int
    producers: list[ActiveProducer] = []


class Producers(Struct, tag="producers"):
    """The answer to TellProducers, in the order asked. A long answer covers only the first partitions."""

    partitions: list[ProducersOfPartition]


class MovePartition(Struct, array_like=True):
    """A move to the log directory with this number. `topic_id`: zeros for an unknown partition."""

    topic: str
    partition: int
    topic_id: bytes
    log_dir: int


class MovePartitions(Struct, tag="move_partitions"):
    """handler -> log: begin to move partitions.

    The answer means that the moves have begun, not that they are done.
    """

    partitions: list[MovePartition]


class MovesBegun(Struct, tag="moves_begun"):
    """The answer to MovePartitions: an error code for each, in the order asked."""

    errors: list[int]


class TellMoves(Struct, tag="tell_moves"):
    """handler -> log: list the partitions that are being moved."""


class MovingPartition(Struct, array_like=True):
    """A move under way. `directory`: the number of the log directory that it moves to.

    `lag`: the number of offsets that the copy is behind.
    """

    topic: str
    partition: int
    log_dir: int
    directory: str
    lag: int


class Moves(Struct, tag="moves"):
    partitions: list[MovingPartition]


class FindToClean(Struct, tag="find_to_clean"):
    """cleaner -> log: ask for the next partition to compact. This ends the cleaner's previous task."""


class ToClean(Struct, tag="to_clean"):
    """A partition to compact: its segments from the first to the last below `end`, and its settings.

    `producers`: a snapshot of the active ones. `ticket` identifies this task in the messages that follow.
    `must`: the partition is older than max.compaction.lag.ms.
    """

    ticket: int
    directory: str
    must: bool
    bases: list[int]
    first_dirty: int
    end: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    producers: bytes


class NothingToClean(Struct, tag="nothing_to_clean"):
    """The answer when no partition is dirty enough."""


class SwapSegments(Struct, tag="swap_segments"):
    """cleaner -> log: the .cleaned files on disk have everything to keep of these segments; swap them in."""

    ticket: int
    bases: list[int]
    size: int
    largest_ms: int
    first_ms: int


class Swapped(Struct, tag="swapped"):
    """The answer to SwapSegments.

    If `done` is false, the segments have changed or cannot be replaced, and the task is void.
    """

    done: bool


class CleaningEnded(Struct, tag="cleaning_ended"):
    """cleaner -> log: everything below `end` is clean, or `problem` says why not. `errno`: of the disk."""

    ticket: int
    end: int = -1
    problem: str = ""
    errno: int = 0


class Recovered(Struct, tag="recovered"):
    """coordinator -> log: every topic has been ensured; anything else in the log directories is stray.

    `topics` are all topics, also those that could not be opened: their files are not touched.
    """

    topics: dict[str, bytes] = {}


class Acknowledged(Struct, tag="acknowledged"):
    """The answer to a call that has no result."""


Message = (
    Failed
    | CreateTopics
    | CreatedTopics
    | DeleteTopics
    | DeletedTopics
    | AlterSettings
    | ReadSettings
    | SettingsRead
    | CreatePartitions
    | AlteredResources
    | AlterQuotas
    | AlteredQuotas
    | AllocateProducerIds
    | ProducerIds
    | ForwardedRequest
    | ForwardedResponse
    | MalformedRequest
    | CheckTransaction
    | CheckedTransaction
    | EndHold
    | HoldsEnded
    | Abandon
    | AlterScram
    | DescribeScram
    | ScramUsers
    | CreateAcls
    | DeleteAcls
    | DeletedAcls
    | CreateToken
    | CreatedToken
    | ChangeToken
    | ChangedToken
    | DescribeTokens
    | DescribedTokens
    | RemoveExpiredTokens
    | RemovedTokens
    | EnsureTopic
    | EnsuredTopic
    | RemoveTopic
    | RemovedTopic
    | DeleteRecords
    | DeletedRecords
    | TellProducers
    | Producers
    | MovePartitions
    | MovesBegun
    | TellMoves
    | Moves
    | FindToClean
    | ToClean
    | NothingToClean
    | SwapSegments
    | Swapped
    | CleaningEnded
    | Recovered
    | Acknowledged
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Decode a message.

    Raises msgspec.DecodeError if the peer has another version, which cannot happen within one broker.
    """
    return _decoder.decode(data)
