"""Messages between handlers, coordinator and log process: msgpack in the block of a CALL or ANSWER.

A call is answered exactly once with its answer type or with `Failed`; `error` fields are Kafka error codes.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from mpbroker.ipc.credentials import ScramImage


class Failed(Struct, tag="failed"):
    """The callee could not serve the call."""

    error: int
    message: str


class CreateTopic(Struct):
    """-1 partitions or replicas: the broker's default. `assignments`: partition -> broker ids, or empty."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: dict[int, list[int]] = {}
    configs: dict[str, str | None] = {}


class Account(Struct):
    """Whose quota pays for what is created and deleted. `strict`: what it does not cover is refused."""

    user: str
    client_id: str
    strict: bool = False


class CreateTopics(Struct, tag="create_topics"):
    """handler -> coordinator. `automatic`: by Metadata, so that an existing topic is no error."""

    topics: list[CreateTopic]
    validate_only: bool = False
    automatic: bool = False
    account: Account | None = None


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
    """handler -> coordinator; by name or by id."""

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
    """`operation`: as in IncrementalAlterConfigs (mpbroker.protocol.numbers.ConfigOperation)."""

    name: str
    operation: int
    value: str | None = None


class ConfigAlteration(Struct):
    """Of a topic, or `of_broker`: of this broker, of all brokers if the name is empty. `replaces`: what is
    altered there beside these goes (AlterConfigs).
    """

    name: str
    changes: list[ConfigChange]
    replaces: bool = False
    of_broker: bool = False


class AlterSettings(Struct, tag="alter_settings"):
    """handler -> coordinator; what is wrong with one topic or broker does not harm the others."""

    alterations: list[ConfigAlteration]
    validate_only: bool = False


class MorePartitions(Struct):
    """`count`: all that the topic is to have. `assignments`: broker ids of each new one, None for any."""

    name: str
    count: int
    assignments: list[list[int]] | None = None


class CreatePartitions(Struct, tag="create_partitions"):
    """handler -> coordinator; what is wrong with one topic does not harm the others."""

    topics: list[MorePartitions]
    validate_only: bool = False
    account: Account | None = None


class AlteredResources(Struct, tag="altered_resources"):
    """(error, message) of each topic (or broker), in the order asked; all handlers can see what changed."""

    results: list[tuple[int, str | None]]
    throttle_ms: int = 0


class QuotaAlteration(Struct):
    """`entity`: (type, name) pairs, None for a default. `changes`: quota -> its value, None removes it."""

    entity: list[tuple[str, str | None]]
    changes: dict[str, float | None]


class AlterQuotas(Struct, tag="alter_quotas"):
    """handler -> coordinator; what is wrong with one entity does not harm the others."""

    alterations: list[QuotaAlteration]
    validate_only: bool = False


class AlteredQuotas(Struct, tag="altered_quotas"):
    """(error, message) of each alteration, in the order asked; all handlers can see what was changed."""

    results: list[tuple[int, str | None]]


class AllocateProducerIds(Struct, tag="allocate_producer_ids"):
    """handler -> coordinator: a block of producer ids of the handler's own, durable before it is answered."""


class ProducerIds(Struct, tag="producer_ids"):
    first: int
    count: int


class ForwardedRequest(Struct, tag="forwarded_request"):
    """handler -> coordinator: a request about a group or a transaction (Kafka's Envelope, KIP-590).

    `body`: as the client sent it in this version of the API, without its header. May wait for long: a
    JoinGroup until the group has a new generation. Answered by ForwardedResponse, MalformedRequest or Failed.
    """

    api_key: int
    version: int
    client_id: str
    client_host: str
    body: bytes


class ForwardedResponse(Struct, tag="forwarded_response"):
    """`body`: the response in the version of the request, without its header. `errors`: how often it has each
    error code.
    """

    body: bytes
    errors: dict[int, int]


class MalformedRequest(Struct, tag="malformed_request"):
    """The body of a ForwardedRequest is none of its API and version."""

    reason: str


class CheckTransaction(Struct, tag="check_transaction"):
    """handler -> coordinator: may a producer append to these partitions in its transaction? (KIP-890)

    `adds`: those that it lacks are added to it, durably. Answered by CheckedTransaction, or Failed.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]
    adds: bool


class CheckedTransaction(Struct, tag="checked_transaction"):
    """`errors`: one for each partition, in their order.

    `hold`: the transaction does not end until EndHold says that what was checked is appended, or never will
    be; 0: what comes too late is refused by its epoch.
    """

    errors: list[int]
    hold: int = 0


class EndHold(Struct, tag="end_hold"):
    """handler -> coordinator: see CheckedTransaction. Answered by Acknowledged."""

    hold: int


class HoldsEnded(Struct, tag="holds_ended"):
    """handler -> coordinator: nothing is open of what its predecessors have held for this handler.

    Said once to each coordinator, soon after its start. Answered by Acknowledged.
    """


class Abandon(Struct, tag="abandon"):
    """handler -> coordinator: the client of the ForwardedRequest with this number is gone.

    What the request has changed stays; that it waits is over. Both calls are answered.
    """

    request: int


class AlterScram(Struct, tag="alter_scram"):
    """handler -> coordinator: credentials to set, and (user, mechanism) of those to remove."""

    upsertions: list[ScramImage] = []
    deletions: list[tuple[str, int]] = []


class ScramUser(Struct):
    """What became of a user's alterations, or its credentials as (mechanism, iterations)."""

    user: str
    error: int = 0
    message: str | None = None
    credentials: list[tuple[int, int]] = []


class DescribeScram(Struct, tag="describe_scram"):
    """handler -> coordinator: who has which credentials; None: everybody."""

    users: list[str] | None = None


class ScramUsers(Struct, tag="scram_users"):
    users: list[ScramUser]


class EnsureTopic(Struct, tag="ensure_topic"):
    """coordinator -> log: open or create these partitions; idempotent, answered when they take appends.

    Partitions from `new_from` on cannot have had records yet (Kafka: isNew). Of others what cannot be found
    is missing, and nothing empty takes its place. A partition with generation 0 in the answer has no slot:
    that passes, and is to be asked for again.
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
    """coordinator -> log: make these partitions unreachable now, delete their files later; idempotent."""

    name: str
    topic_id: bytes


class RemovedTopic(Struct, tag="removed_topic"):
    topic_id: bytes


class DeleteBefore(Struct, array_like=True):
    """Records below `offset` of the partition in this slot; -1: all that are durable."""

    slot: int
    slot_generation: int
    offset: int


class DeleteRecords(Struct, tag="delete_records"):
    """handler -> log."""

    partitions: list[DeleteBefore]


class DeletedBefore(Struct, array_like=True):
    """`log_start`: what is there begins with this offset, for good."""

    error: int
    log_start: int = -1


class DeletedRecords(Struct, tag="deleted_records"):
    """In the order asked."""

    partitions: list[DeletedBefore]


class PartitionProducers(Struct, array_like=True):
    """The producers of the partition in this slot."""

    slot: int
    slot_generation: int


class TellProducers(Struct, tag="tell_producers"):
    """handler -> log."""

    partitions: list[PartitionProducers]


class ActiveProducer(Struct, array_like=True):
    """`open_from`: where its open transaction begins, -1 without one."""

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
    """In the order asked."""

    partitions: list[ProducersOfPartition]


class MovePartition(Struct, array_like=True):
    """To the log directory with this number. `topic_id`: zeros if there is no such partition."""

    topic: str
    partition: int
    topic_id: bytes
    log_dir: int


class MovePartitions(Struct, tag="move_partitions"):
    """handler -> log: they are on their way when this is answered, and arrive some time."""

    partitions: list[MovePartition]


class MovesBegun(Struct, tag="moves_begun"):
    """An error code of each, in the order asked."""

    errors: list[int]


class TellMoves(Struct, tag="tell_moves"):
    """handler -> log: which partitions are on their way?"""


class MovingPartition(Struct, array_like=True):
    """`directory`: its future one. `lag`: how many offsets that has to catch up with."""

    topic: str
    partition: int
    log_dir: int
    directory: str
    lag: int


class Moves(Struct, tag="moves"):
    partitions: list[MovingPartition]


class FindToClean(Struct, tag="find_to_clean"):
    """cleaner -> log: which partition is to be compacted next? Ends whatever was granted before."""


class ToClean(Struct, tag="to_clean"):
    """A partition, its segments from the first to the last below `end`, and the settings that count.

    `producers`: a snapshot of those that are active. `ticket`: what the messages that follow are about.
    `must`: it is older than max.compaction.lag.ms.
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
    """No partition is dirty enough."""


class SwapSegments(Struct, tag="swap_segments"):
    """cleaner -> log: files with the suffix .cleaned are on disk, and have all that is to stay of these."""

    ticket: int
    bases: list[int]
    size: int
    largest_ms: int
    first_ms: int


class Swapped(Struct, tag="swapped"):
    """Not `done`: the segments are other ones by now, or cannot be replaced; the task is void."""

    done: bool


class CleaningEnded(Struct, tag="cleaning_ended"):
    """cleaner -> log: what lies below `end` is clean, or why it is not. `errno`: of the disk, if any."""

    ticket: int
    end: int = -1
    problem: str = ""
    errno: int = 0


class Recovered(Struct, tag="recovered"):
    """coordinator -> log: every topic has been ensured; what else lies in the log directories is stray.

    `topics`: all that there are, also those that could not be opened: their files are not touched.
    """

    topics: dict[str, bytes] = {}


class Acknowledged(Struct, tag="acknowledged"):
    """The answer to a call that has nothing to tell."""


Message = (
    Failed
    | CreateTopics
    | CreatedTopics
    | DeleteTopics
    | DeletedTopics
    | AlterSettings
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
    """Raises msgspec.DecodeError: the peer is another version, which cannot be within one broker."""
    return _decoder.decode(data)
