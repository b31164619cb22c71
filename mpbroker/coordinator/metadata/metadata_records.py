"""Encodes, decodes and batches the records of `__cluster_metadata` that this broker writes.

Records have the versions of Kafka's MetadataRecordSerde (KIP-631), so that
`kafka-dump-log.sh --cluster-metadata-decoder` reads our log; keys are null. One batch is one atomic step: it
is in the log as a whole or not at all. Records of unknown types stay in the log and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

from mpbroker.protocol import messages
from mpbroker.protocol.codec import data_key, prepare_data
from mpbroker.protocol.features import FINALIZED
from mpbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record, read_frame
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord


class KeptRecord(NamedTuple):
    """A record of a type that this program does not know. The record stays in the log and is ignored."""

    kind: int


MetadataRecord = (
    messages.TopicRecord
    | messages.PartitionRecord
    | messages.ConfigRecord
    | messages.RemoveTopicRecord
    | messages.UserScramCredentialRecord
    | messages.ClientQuotaRecord
    | messages.ProducerIdsRecord
    | messages.RemoveUserScramCredentialRecord
    | messages.AccessControlEntryRecord
    | messages.RemoveAccessControlEntryRecord
    | messages.DelegationTokenRecord
    | messages.RemoveDelegationTokenRecord
    | messages.FeatureLevelRecord
    | KeptRecord
)

# PartitionRecord: version 1 has its replicas' directories; 2 adds what only a cluster needs (KIP-966).
_VERSIONS: Final[dict[type[messages.Message], int]] = {
    messages.TopicRecord: 0,
    messages.PartitionRecord: 1,
    messages.ConfigRecord: 0,
    messages.RemoveTopicRecord: 0,
    messages.UserScramCredentialRecord: 0,
    messages.ClientQuotaRecord: 0,
    messages.ProducerIdsRecord: 0,
    messages.RemoveUserScramCredentialRecord: 0,
    messages.AccessControlEntryRecord: 0,
    messages.RemoveAccessControlEntryRecord: 0,
    messages.DelegationTokenRecord: 0,
    messages.RemoveDelegationTokenRecord: 0,
    messages.FeatureLevelRecord: 0,
}

RECORDS_PER_BATCH: Final = 1024
"""Records in a batch. Kafka reads batches of at most 8 MiB (KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""
_TYPES: Final = {data_key(record): record for record in _VERSIONS}


FEATURE_LEVELS: Final[Mapping[str, int]] = FINALIZED
"""The feature levels that a metadata log has. Kafka's controller looks for metadata.version first."""


def feature_records(there: Mapping[str, int]) -> list[messages.FeatureLevelRecord]:
    """Return the records of those FEATURE_LEVELS that a metadata log with the levels `there` lacks.

    A new metadata log begins with all of them.
    """
    return [
        messages.FeatureLevelRecord(name=name, feature_level=level)
        for name, level in FEATURE_LEVELS.items()
        if there.get(name, 0) < level
    ]


class UnreadableMetadata(Exception):
    """A record of the metadata log is damaged, or of a version that this program does not know."""


def prepare() -> None:
    """Compile the decoders of topic and partition records before they are used."""
    for record in (messages.TopicRecord, messages.PartitionRecord):
        prepare_data(record, _VERSIONS[record])


def encode_record(record: MetadataRecord) -> bytes:
    """Return the encoded value of a record, which must not be a KeptRecord."""
    assert not isinstance(record, KeptRecord)
    return encode_metadata_record(record, _VERSIONS[type(record)])


def decode_record(value: Buffer) -> MetadataRecord:
    """Decode the value of a record; return a KeptRecord for an unknown type. Raises UnreadableMetadata."""
    if (kind := kind_of(value)) not in _TYPES:
        return KeptRecord(kind)
    try:
        record: MetadataRecord = decode_metadata_record(value)
    except MalformedMessage as error:
        raise UnreadableMetadata(str(error)) from error
    return record


def kind_of(value: Buffer) -> int:
    """Return the number of the record's type. Raises UnreadableMetadata."""
    try:
        return read_frame(value)[0]
    except MalformedMessage as error:
        raise UnreadableMetadata(str(error)) from error


def is_known(kind: int) -> bool:
    """Return whether this program uses records of this type."""
    return kind in _TYPES


def check_version(value: Buffer) -> None:
    """Raise UnreadableMetadata if the record is malformed, or its type is known but its version is not."""
    try:
        api_key, version, _ = read_frame(value)
    except MalformedMessage as error:
        raise UnreadableMetadata(str(error)) from error
    if api_key in _TYPES:
        _check_version(api_key, version)


@cache
def _check_version(api_key: int, version: int) -> None:
    """Raise UnreadableMetadata if this version of a record type is not known."""
    record = _TYPES[api_key]
    try:
        prepare_data(record, version)
    except UnsupportedVersion as error:
        raise UnreadableMetadata(f"{record.__name__} of version {version} is not known") from error


def build_metadata_batch(
    values: list[bytes], timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> bytearray:
    """Build one batch of encoded records. They take effect together or not at all."""
    return build_batch(
        [NewRecord(value=value, timestamp=timestamp_ms) for value in values],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def metadata_batches(
    values: Iterable[bytes], timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> Iterator[bytearray]:
    """Yield batches of encoded records, RECORDS_PER_BATCH in each. Each batch takes effect on its own."""
    left = iter(values)
    while some := list(islice(left, RECORDS_PER_BATCH)):
        yield build_metadata_batch(some, timestamp_ms, base_offset, leader_epoch)
        base_offset += len(some)
