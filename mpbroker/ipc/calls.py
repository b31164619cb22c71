"""Messages between handlers, coordinator and log process: msgpack in the block of a CALL or ANSWER.

Every call is answered exactly once: with the answer that belongs to it, or with `Failed`. Fields named
`error` have Kafka error codes.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from mpbroker.ipc.acls import AclFilterImage, AclImage
from mpbroker.ipc.credentials import ScramImage


class Failed(Struct, tag="failed"):
    """The answer of a process that could not serve a call."""

    error: int
    message: str


class CreateTopic(Struct):
    """A topic to create. A number of partitions or replicas of -1 stands for the broker's default.

    `assignments` has the broker ids of each partition, or is empty if the broker may choose. `topic_id` is
    set if the topic was deleted and comes back.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: dict[int, list[int]] = {}
    configs: dict[str, str | None] = {}
    topic_id: bytes = b""

    def partitions_asked(self, default: int) -> int:
        """Return the number of partitions that the request asks for; -1 partitions count as `default`."""
        if self.assignments:
            return len(self.assignments)
        return default if self.partitions == -1 else self.partitions


class Account(Struct):
    """The client whose controller mutation quota is charged for creations and deletions.

    `strict`: refuse a request when the quota is exhausted. Otherwise the client is only throttled.
    """

    user: str
    client_id: str
    strict: bool = False


class CreateTopics(Struct, tag="create_topics"):
    """handler -> coordinator: create topics.

    `automatic`: a Metadata request caused the call, so an existing topic is not an error. A long
    request is sent as several calls. `beside` is the number of partitions in the other calls.
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

    `operation` is a mpbroker.protocol.numbers.ConfigOperation, as in IncrementalAlterConfigs.
    """

    name: str
    operation: int
    value: str | None = None


class ConfigAlteration(Struct):
    """Changes to the settings of a resource. `kind` is the resource's type, as numbered in the protocol.

    The broker resource with the name "" stands for all brokers. `replaces`: remove all altered settings that
    `changes` does not name (AlterConfigs).
    """

    name: str
    changes: list[ConfigChange]
    replaces: bool = False
    kind: int = 2


class AlterSettings(Struct, tag="alter_settings"):
    """handler -> coordinator: alter settings. An error in one alteration does not affect the others."""

    alterations: list[ConfigAlteration]
    validate_only: bool = False


class ReadSettings(Struct, tag="read_settings"):
    """handler -> coordinator: read the settings of groups and of subscriptions to client metrics.

    `resources` has (type, name) of each resource; None means all resources that have settings.
    """

    resources: list[tuple[int, str]] | None = None


class SettingsRead(Struct, tag="settings_read"):
    """The answer to ReadSettings: (type, name, settings) of each resource."""

    resources: list[tuple[int, str, dict[str, str]]]


class MorePartitions(Struct):
    """A topic that is to have `count` partitions, with the existing partitions included.

    `assignments` has the broker ids of each new partition; None if the broker may choose.
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
    """The answer to a call with several items: (error, message) of each item, in the order of the call.

    The coordinator answers when all handlers know the changes.
    """

    results: list[tuple[int, str | None]]
    throttle_ms: int = 0


class QuotaAlteration(Struct):
    """Changes to one entity's quotas. `changes` has the new value of each quota; None removes the quota.

    `entity` is a list of (type, name). A name of None stands for the default entity of the type.
    """

    entity: list[tuple[str, str | None]]
    changes: dict[str, float | None]


class AlterQuotas(Struct, tag="alter_quotas"):
    """handler -> coordinator: alter quotas. An error in one entity does not affect the others."""

    alterations: list[QuotaAlteration]
    validate_only: bool = False


class AlteredQuotas(Struct, tag="altered_quotas"):
    """The answer to AlterQuotas: (error, message) of each alteration, in the order of the call.

    The coordinator answers when all handlers know the changes.
    """

    results: list[tuple[int, str | None]]


class AllocateProducerIds(Struct, tag="allocate_producer_ids"):
    """handler -> coordinator: allocate a block of producer ids. It is durable before the answer is sent."""


class ProducerIds(Struct, tag="producer_ids"):
    first: int
    count: int


class ForwardedRequest(Struct, tag="forwarded_request"):
    """handler -> coordinator: a request about a group or a transaction (Kafka's Envelope, KIP-590).

    `body` is the client's request in this version of the API, without its header. The answer may take long: a
    JoinGroup waits until the group has a new generation. `principal` is written `Type:name`. Answered by
    ForwardedResponse, MalformedRequest or Failed.
    """

    api_key: int
    version: int
    client_id: str
    client_host: str
    principal: str
    body: bytes


class ForwardedResponse(Struct, tag="forwarded_response"):
    """The answer to a ForwardedRequest.

    `body` is the response in the version of the request, without its header. `errors` counts the error codes
    in the response.
    """

    body: bytes
    errors: dict[int, int]


class MalformedRequest(Struct, tag="malformed_request"):
    """The answer to a ForwardedRequest whose body cannot be parsed in its API and version."""

    reason: str


class CheckTransaction(Struct, tag="check_transaction"):
    """handler -> coordinator: check whether a transaction of a producer has these partitions (KIP-890).

    `adds`: add the missing partitions to the transaction, durably. Answered by CheckedTransaction or Failed.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]
    adds: bool


class CheckedTransaction(Struct, tag="checked_transaction"):
    """The answer to CheckTransaction: an error code for each partition, in the order of the call.

    `hold` numbers a hold, which keeps the transaction from ending until an EndHold reports that the checked
    batches are appended or lost. 0 means that no hold is needed: the log refuses late batches by their epoch.
    """

    errors: list[int]
    hold: int = 0


class EndHold(Struct, tag="end_hold"):
    """handler -> coordinator: end a hold (see CheckedTransaction). Answered by Acknowledged."""

    hold: int


class HoldsEnded(Struct, tag="holds_ended"):
    """handler -> coordinator: end all holds that earlier coordinator processes gave to this handler.

    A handler sends it once to each new coordinator process. Answered by Acknowledged.
    """


class Abandon(Struct, tag="abandon"):
    """handler -> coordinator: end the wait of the ForwardedRequest whose call has the number `request`.

    The client has disconnected. The changes that the ForwardedRequest has made remain. The Abandon and the
    ForwardedRequest are both answered.
    """

    request: int


class AlterScram(Struct, tag="alter_scram"):
    """handler -> coordinator: set SCRAM credentials, and remove others, given as (user, mechanism)."""

    upsertions: list[ScramImage] = []
    deletions: list[tuple[str, int]] = []


class ScramUser(Struct):
    """A user in an answer to AlterScram or DescribeScram. `credentials`: (mechanism, iterations) of each."""

    user: str
    error: int = 0
    message: str | None = None
    credentials: list[tuple[int, int]] = []


class DescribeScram(Struct, tag="describe_scram"):
    """handler -> coordinator: describe the SCRAM credentials of these users; None means all users."""

    users: list[str] | None = None


class ScramUsers(Struct, tag="scram_users"):
    users: list[ScramUser]


class CreateAcls(Struct, tag="create_acls"):
    """handler -> coordinator: create access control entries. Answered by AlteredResources."""

    acls: list[AclImage]


class DeleteAcls(Struct, tag="delete_acls"):
    """handler -> coordinator: delete access control entries that match a filter. Answered by DeletedAcls."""

    filters: list[AclFilterImage]


class DeletedAclsOfFilter(Struct):
    """The result of one filter of DeleteAcls: the deleted entries, or an error."""

    error: int = 0
    message: str | None = None
    acls: list[AclImage] = []


class DeletedAcls(Struct, tag="deleted_acls"):
    """The answer to DeleteAcls: a result for each filter, in the order of the call."""

    results: list[DeletedAclsOfFilter]


class TokenDetails(Struct, array_like=True):
    """A delegation token with all its fields. Principals are written `User:name`."""

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
    """handler -> coordinator: create a delegation token. Answered by CreatedToken.

    A `max_lifetime_ms` of 0 or less means the longest lifetime that the broker allows.
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

    If `expires`, a negative period lets the token expire now. A renewal with a period of 0 or less lasts as
    long as the broker allows. Answered by ChangedToken.
    """

    hmac: bytes
    requester: str
    period_ms: int
    expires: bool = False

    def __repr__(self) -> str:
        """Return a text without the HMAC, which is a password."""
        return f"ChangeToken({self.requester}, {self.period_ms}, expires={self.expires})"


class ChangedToken(Struct, tag="changed_token"):
    """The answer to ChangeToken. `token_id` is for the audit log, because the request has only the HMAC."""

    error: int = 0
    expires_ms: int = -1
    token_id: str = ""


class DescribeTokens(Struct, tag="describe_tokens"):
    """handler -> coordinator: describe tokens that have an owner, requester or renewer in `owners`.

    `owners` are principals; None means all tokens. The answer begins after the token with the id `after`, or
    with the first token if there is no such token. Answered by DescribedTokens.
    """

    owners: list[str] | None
    after: str = ""


class DescribedTokens(Struct, tag="described_tokens"):
    """The answer to DescribeTokens. If `are_all` is false, ask again with the last token's id as `after`."""

    error: int = 0
    tokens: list[TokenDetails] = []
    are_all: bool = True


class RemoveExpiredTokens(Struct, tag="remove_expired_tokens"):
    """The coordinator to itself: remove tokens that have expired. Answered by RemovedTokens."""


class RemovedTokens(Struct, tag="removed_tokens"):
    """The answer to RemoveExpiredTokens: the ids of the removed tokens; empty if none had expired."""

    token_ids: list[str]


class EnsureTopic(Struct, tag="ensure_topic"):
    """coordinator -> log: open or create these partitions. Idempotent; answered when they take appends.

    Partitions from number `new_from` on are new and cannot have records yet (Kafka: isNew). If an older
    partition that may have had records is missing on disk, that is an error: no empty partition replaces it.
    A partition with generation 0 in the answer has no slot at the moment: send the call again.
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
    """A partition, by slot, whose records before `offset` are to be deleted; -1 means all durable records."""

    slot: int
    slot_generation: int
    offset: int


class DeleteRecords(Struct, tag="delete_records"):
    """handler -> log: delete records."""

    partitions: list[DeleteBefore]


class DeletedBefore(Struct, array_like=True):
    """The result of DeleteRecords for one partition. `log_start` is the new log start offset, now durable."""

    error: int
    log_start: int = -1


class DeletedRecords(Struct, tag="deleted_records"):
    """The answer to DeleteRecords: a result for each partition, in the order of the call."""

    partitions: list[DeletedBefore]


class PartitionProducers(Struct, array_like=True):
    """The slot of a partition whose active producers are to be described."""

    slot: int
    slot_generation: int


class TellProducers(Struct, tag="tell_producers"):
    """handler -> log: describe the active producers of these partitions."""

    partitions: list[PartitionProducers]


class ActiveProducer(Struct, array_like=True):
    """An active producer. `open_from` is the first offset of the producer's open transaction, or -1."""

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
    """The answer to TellProducers, in the order of the call.

    If the producers are too many for one answer, the answer leaves out the last partitions. The handler then
    asks again for those.
    """

    partitions: list[ProducersOfPartition]


class MovePartition(Struct, array_like=True):
    """A partition to move to log directory number `log_dir`.

    `topic_id` is zeros if the partition does not exist.
    """

    topic: str
    partition: int
    topic_id: bytes
    log_dir: int


class MovePartitions(Struct, tag="move_partitions"):
    """handler -> log: begin to move partitions.

    The log answers with MovesBegun when the moves have begun; they need not have ended.
    """

    partitions: list[MovePartition]


class MovesBegun(Struct, tag="moves_begun"):
    """The answer to MovePartitions: an error code for each partition, in the order of the call."""

    errors: list[int]


class TellMoves(Struct, tag="tell_moves"):
    """handler -> log: list the partitions that are being moved."""


class MovingPartition(Struct, array_like=True):
    """A move under way to log directory number `log_dir`. `directory` is the path of the partition's copy.

    `lag` is the number of offsets that the copy lacks.
    """

    topic: str
    partition: int
    log_dir: int
    directory: str
    lag: int


class Moves(Struct, tag="moves"):
    partitions: list[MovingPartition]


class FindToClean(Struct, tag="find_to_clean"):
    """cleaner -> log: ask for the next partition to compact. The call ends the cleaner's previous task."""


class ToClean(Struct, tag="to_clean"):
    """The answer to FindToClean: a partition to compact up to offset `end` (exclusive), and its settings.

    `bases` are the base offsets of the segments. `producers` is a snapshot of the active producers. `ticket`
    is the number of this task in later messages. `must`: some records are older than max.compaction.lag.ms.
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
    """The answer to FindToClean when no partition is dirty enough to be compacted."""


class SwapSegments(Struct, tag="swap_segments"):
    """cleaner -> log: replace the segments with these base offsets by the .cleaned files on disk."""

    ticket: int
    bases: list[int]
    size: int
    largest_ms: int
    first_ms: int


class Swapped(Struct, tag="swapped"):
    """The answer to SwapSegments.

    If `done` is false, the segments have changed or cannot be replaced, and the cleaner must drop the task.
    """

    done: bool


class CleaningEnded(Struct, tag="cleaning_ended"):
    """cleaner -> log: the offsets below `end` are clean. After a failure `problem` and `errno` say why."""

    ticket: int
    end: int = -1
    problem: str = ""
    errno: int = 0


class RemoteWindow(Struct, tag="remote_window"):
    """handler -> tier: bring a window of a partition's remote segments into the cache.

    It is the window that has `offset` or, in the offset's segment, the first record from there on that is not
    earlier than `timestamp_ms`, or a window before that record's. Answered by RemoteWindowReady or Failed.
    """

    slot: int
    slot_generation: int
    offset: int
    timestamp_ms: int = -1


class RemoteWindowReady(Struct, tag="remote_window_ready"):
    """The answer to RemoteWindow: a window with all records at offsets [base, end), in the directory `path`.

    `base` may be above the offset that was asked for, if there are no records in between.
    """

    base: int
    end: int
    path: str


class UndeleteTopic(Struct, tag="undelete_topic"):
    """handler -> tier: make the directories of a deleted topic of what the object store has of it.

    Answered by Acknowledged when the topic may be created under its id, or by Failed.
    """

    name: str
    topic_id: bytes
    partitions: int


class Recovered(Struct, tag="recovered"):
    """coordinator -> log: every topic has had its EnsureTopic, so all other partitions on disk are stray.

    `topics` has the ids of all topics by name. They include topics that could not be opened, whose files the
    log must not touch.
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
    | RemoteWindow
    | RemoteWindowReady
    | UndeleteTopic
    | Recovered
    | Acknowledged
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Decode a message.

    Raises msgspec.DecodeError if the data is not a message, which cannot happen within one broker.
    """
    return _decoder.decode(data)
