"""The records of `__cluster_metadata` that this broker writes, in which versions, and batches of them.

As in Kafka's MetadataRecordSerde (KIP-631), so that `kafka-dump-log.sh --cluster-metadata-decoder` reads our
log; their keys are null. One batch is one atomic step: it is in the log as a whole or not at all.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from mpbroker.protocol.codec import data_key, prepare_data
from mpbroker.protocol.messages import (
    ClientQuotaRecord,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from mpbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record, read_frame
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | ConfigRecord
    | RemoveTopicRecord
    | UserScramCredentialRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | RemoveUserScramCredentialRecord
)

# PartitionRecord 1 has the directories of its replicas; 2 adds what only a cluster needs (KIP-966).
_VERSIONS: Final[dict[type[MetadataRecord], int]] = {
    TopicRecord: 0,
    PartitionRecord: 1,
    ConfigRecord: 0,
    RemoveTopicRecord: 0,
    UserScramCredentialRecord: 0,
    ClientQuotaRecord: 0,
    ProducerIdsRecord: 0,
    RemoveUserScramCredentialRecord: 0,
}

_TYPES: Final = {data_key(record): record for record in _VERSIONS}


class UnreadableMetadata(Exception):
    """A record of the metadata log is none that this version knows, or is damaged."""


def prepare() -> None:
    """Compiles what reads the records of topics ahead, as `codec.prepare` does."""
    for record in (TopicRecord, PartitionRecord):
        prepare_data(record, _VERSIONS[record])


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the record in the log."""
    return encode_metadata_record(record, _VERSIONS[type(record)])


def decode_record(value: Buffer) -> MetadataRecord:
    """Raises UnreadableMetadata."""
    try:
        record = decode_metadata_record(value)
    except MalformedMessage as error:
        raise UnreadableMetadata(str(error)) from error
    if type(record) not in _VERSIONS:
        raise UnreadableMetadata(f"{type(record).__name__} is none of the records that a broker alone has")
    known: MetadataRecord = record
    return known


def check_type(value: Buffer) -> None:
    """Raises UnreadableMetadata for types and versions that `decode_record` refuses; reads no fields."""
    try:
        api_key, version, _ = read_frame(value)
        _check_type(api_key, version)
    except MalformedMessage as error:
        raise UnreadableMetadata(str(error)) from error


@cache
def _check_type(api_key: int, version: int) -> None:
    """Raises UnreadableMetadata."""
    record = _TYPES.get(api_key)
    if record is None:
        raise UnreadableMetadata(f"a broker alone has no records of type {api_key}")
    try:
        prepare_data(record, version)
    except UnsupportedVersion as error:
        raise UnreadableMetadata(f"{record.__name__} of version {version} is not known") from error


def build_metadata_batch(
    values: list[bytes], timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> bytearray:
    """One batch of records that `encode_record` made: an atomic step."""
    return build_batch(
        [NewRecord(value=value, timestamp=timestamp_ms) for value in values],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
