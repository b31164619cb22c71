"""The state that the records of Apache Kafka's or mpbroker's metadata log describe (Kafka: MetadataImage).

Unlike the coordinator's state, the image keeps records, so that they can be written for the other kind of
broker. The image also accepts records that only a cluster of several nodes has. No I/O.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import structs

from mpbroker.config.topic_config import is_tiered
from mpbroker.protocol.codec import data_key
from mpbroker.protocol.messages import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Message,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from mpbroker.protocol.metadata_records import decode_metadata_record, read_frame
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.wire import Buffer

_BROKER_ID: Final = struct.Struct(">i")
_UNCHANGED: Final = -2
"""The `leader` of a PartitionChangeRecord that leaves the leader unchanged (Kafka: NO_LEADER_CHANGE)."""
QuotaKey: TypeAlias = tuple[tuple[tuple[str, str], ...], str]


class ClusterRecord(IntEnum):
    """Types of records that a single broker does not write (Kafka: MetadataRecordType)."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    BROKER_REGISTRATION_CHANGE = 17
    NO_OP = 20
    ZK_MIGRATION_STATE = 21
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REGISTER_CONTROLLER = 27
    CLEAR_ELR = 28


@dataclass
class ClusterImage:
    """The state of a cluster. `epoch` is the leader epoch of the last batch.

    `next_offset` is one above the offset of the last record. `configs` has settings by type and name of their
    resource. `brokers` has the ids of registered brokers. `unknown` counts records of unknown types, by type.
    """

    topics: dict[bytes, str] = field(default_factory=dict)
    partitions: dict[bytes, dict[int, PartitionRecord]] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    quotas: dict[QuotaKey, ClientQuotaRecord] = field(default_factory=dict)
    credentials: dict[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    acls: dict[bytes, AccessControlEntryRecord] = field(default_factory=dict)
    tokens: dict[str, DelegationTokenRecord] = field(default_factory=dict)
    next_producer_id: int = 0
    brokers: set[int] = field(default_factory=set)
    unknown: Counter[int] = field(default_factory=Counter)
    next_offset: int = 0
    epoch: int = 0

    @property
    def tiered(self) -> list[str]:
        """Return the topics that have records in an object store, by name."""
        return sorted(
            resource
            for (kind, resource), configs in self.configs.items()
            if kind == ConfigResourceType.TOPIC and is_tiered(configs)
        )

    def apply(self, value: Buffer) -> None:
        """Apply a record. A record in a transaction must be passed only when the transaction has ended.

        Raises MalformedMessage, or KeyError if the record changes something that does not exist.
        """
        api_key, _, position = read_frame(value)
        try:
            kind = ClusterRecord(api_key)
        except ValueError:
            if api_key in _DECODED:
                self._apply(decode_metadata_record(value))
            else:
                self.unknown[api_key] += 1
            return
        if kind is ClusterRecord.REGISTER_BROKER:
            self.brokers.add(_BROKER_ID.unpack_from(value, position)[0])
        elif kind is ClusterRecord.UNREGISTER_BROKER:
            self.brokers.discard(_BROKER_ID.unpack_from(value, position)[0])

    def _apply(self, record: Message) -> None:
        match record:
            case TopicRecord():
                self.topics[record.topic_id] = record.name
                self.partitions[record.topic_id] = {}
            case PartitionRecord():
                self.partitions[record.topic_id][record.partition_id] = record
            case PartitionChangeRecord():
                there = self.partitions[record.topic_id]
                there[record.partition_id] = _changed(there[record.partition_id], record)
            case RemoveTopicRecord():
                del self.partitions[record.topic_id]
                self.configs.pop((ConfigResourceType.TOPIC, self.topics.pop(record.topic_id)), None)
            case ConfigRecord():
                self._set_config(record)
            case FeatureLevelRecord():
                self.features[record.name] = record.feature_level
            case ClientQuotaRecord():
                self._set_quota(record)
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case _:
                self._set_security(record)

    def _set_config(self, record: ConfigRecord) -> None:
        resource = record.resource_type, record.resource_name
        configs = self.configs.setdefault(resource, {})
        configs.pop(record.name, None)
        if record.value is not None:
            configs[record.name] = record.value
        if not configs:
            del self.configs[resource]

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        # A default entity has no name, and no name comes before "".
        entity = sorted((one.entity_type, repr(one.entity_name)) for one in record.entity)
        key = tuple(entity), record.key
        self.quotas.pop(key, None)
        if not record.remove:
            self.quotas[key] = record

    def _set_security(self, record: Message) -> None:
        match record:
            case UserScramCredentialRecord():
                self.credentials[record.name, record.mechanism] = record
            case RemoveUserScramCredentialRecord():
                del self.credentials[record.name, record.mechanism]
            case AccessControlEntryRecord():
                self.acls[record.id] = record
            case RemoveAccessControlEntryRecord():
                del self.acls[record.id]
            case DelegationTokenRecord():
                self.tokens[record.token_id] = record
            case RemoveDelegationTokenRecord():
                del self.tokens[record.token_id]

    def all_partitions(self) -> Iterator[tuple[str, bytes, PartitionRecord]]:
        """Yield (topic name, topic id, record) for each partition, sorted by name and partition number."""
        for topic_id, name in sorted(self.topics.items(), key=lambda one: one[1]):
            for _, record in sorted(self.partitions[topic_id].items()):
                yield name, topic_id, record


_RECORDS: Final[tuple[type[Message], ...]] = (
    *(TopicRecord, RemoveTopicRecord, PartitionRecord, PartitionChangeRecord),
    *(ConfigRecord, FeatureLevelRecord, ClientQuotaRecord, ProducerIdsRecord),
    *(UserScramCredentialRecord, RemoveUserScramCredentialRecord),
    *(AccessControlEntryRecord, RemoveAccessControlEntryRecord),
    *(DelegationTokenRecord, RemoveDelegationTokenRecord),
)
_DECODED: Final = frozenset(map(data_key, _RECORDS))


def _changed(before: PartitionRecord, change: PartitionChangeRecord) -> PartitionRecord:
    """Return the record of a partition after a change (Kafka: PartitionRegistration.merge)."""
    after = structs.replace(before, partition_epoch=before.partition_epoch + 1)
    for name in ("isr", "replicas", "removing_replicas", "adding_replicas", "directories"):
        if (value := getattr(change, name)) is not None:
            setattr(after, name, value)
    if change.leader != _UNCHANGED:
        after.leader = change.leader
        after.leader_epoch += 1
    if change.leader_recovery_state >= 0:
        after.leader_recovery_state = change.leader_recovery_state
    return after
