"""The records of `__cluster_metadata`: message classes to bytes and back, and batches of them.

Framing as in Kafka's MetadataRecordSerde (AbstractApiMessageSerde, KIP-631), so that `kafka-dump-log.sh
--cluster-metadata-decoder` reads our log: the value of a record is frame version, api key and version as
unsigned varints, then the flexible body; its key is null. One batch is one atomic step: it is in the log as
a whole or not at all.
"""

from __future__ import annotations

from typing import Final

from mpbroker.protocol.codec import decode_data, encode_bytes, encode_data, prepare_data
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
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion, read_uvarint, uvarint
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

FRAME_VERSION: Final = 1

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
_KEYS: Final[dict[type[MetadataRecord], int]] = {
    TopicRecord: 2,
    PartitionRecord: 3,
    ConfigRecord: 4,
    RemoveTopicRecord: 9,
    UserScramCredentialRecord: 11,
    ClientQuotaRecord: 14,
    ProducerIdsRecord: 15,
    RemoveUserScramCredentialRecord: 22,
}


class UnreadableMetadata(Exception):
    """A record of the metadata log is none that this version knows, or is damaged."""


def prepare() -> None:
    """Compiles what reads the records of topics ahead, as `codec.prepare` does."""
    for record in (TopicRecord, PartitionRecord):
        prepare_data(record, _VERSIONS[record])


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the record in the log."""
    version = _VERSIONS[type(record)]
    frame = uvarint(FRAME_VERSION) + uvarint(_KEYS[type(record)]) + uvarint(version)
    return frame + encode_bytes(encode_data(record, version))


def decode_record(value: Buffer) -> MetadataRecord:
    """Raises UnreadableMetadata."""
    try:
        frame_version, at = read_uvarint(value, 0)
        if frame_version != FRAME_VERSION:
            raise UnreadableMetadata(f"frame version {frame_version}, this program knows {FRAME_VERSION}")
        api_key, at = read_uvarint(value, at)
        version, at = read_uvarint(value, at)
        if api_key not in _KEYS.values():
            raise UnreadableMetadata(f"record type {api_key} is not known to this version of the program")
        record, end = decode_data(api_key, version, value, at)
    except (MalformedMessage, UnsupportedVersion, IndexError) as error:
        raise UnreadableMetadata(str(error)) from error
    if end != len(value):
        raise UnreadableMetadata(f"{len(value) - end} bytes behind a record of type {api_key}")
    known: MetadataRecord = record
    return known


def build_metadata_batch(
    values: list[bytes], timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> bytearray:
    """One batch of records that `encode_record` made: an atomic step."""
    return build_batch(
        [NewRecord(value=value, timestamp=timestamp_ms) for value in values],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
