"""The object `.rsm-manifest` of a segment, as Aiven's plug-in has it. (Aiven: SegmentManifestV1.)

The ledger has all that it says, so only an import of Kafka's segments reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mpbroker.protocol.uuids import uuid_text
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.object_names import SegmentObjects

# The pieces that the plug-in fetches a segment in.
CHUNK_BYTES: Final = 4 << 20
_VERSION: Final = "1"
_INDEXES: Final = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")


def encode_manifest(
    objects: SegmentObjects,
    *,
    end: int,
    size: int,
    largest_ms: int,
    epochs: Sequence[tuple[int, int]],
    index_sizes: IndexSizes,
    broker_id: int,
    time_ms: int,
) -> bytes:
    """Return the manifest of a segment of `size` bytes with offsets up to `end`, uploaded at `time_ms`.

    `epochs` are the leader epochs of its offsets.
    """
    indexes: dict[str, dict[str, int] | None] = {
        name: {"position": position, "size": part}
        for name, position, part in zip(_INDEXES, index_sizes.positions, index_sizes, strict=True)
    }
    if not index_sizes.transactions:
        indexes["transaction"] = None
    manifest = {
        "version": _VERSION,
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": CHUNK_BYTES,
            "originalFileSize": size,
            "transformedChunkSize": CHUNK_BYTES,
            "finalTransformedChunkSize": (size - 1) % CHUNK_BYTES + 1 if size else 0,
        },
        "segmentIndexes": indexes,
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": uuid_text(objects.topic_id),
                    "topicPartition": {"topic": objects.topic, "partition": objects.partition},
                },
                "id": uuid_text(objects.segment_id),
            },
            "startOffset": objects.base,
            "endOffset": end - 1,
            "maxTimestampMs": largest_ms,
            "brokerId": broker_id,
            "eventTimestampMs": time_ms,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in epochs},
        },
    }
    return msgspec.json.encode(manifest)


class ManifestRefused(ValueError):
    """Raised for the manifest of a segment that is stored otherwise than on disk. The message says how."""


class _ChunkIndex(msgspec.Struct, rename="camel"):
    original_file_size: int


class _Part(msgspec.Struct):
    position: int
    size: int


class _Manifest(msgspec.Struct, rename="camel"):
    version: str
    chunk_index: _ChunkIndex
    segment_indexes: dict[str, _Part | None]
    compression: bool
    encryption: Any = None


def decode_manifest(body: bytes) -> tuple[int, IndexSizes]:
    """Return the size of a segment, and of the parts of its indexes. Raises ManifestRefused."""
    try:
        manifest = msgspec.json.decode(body, type=_Manifest)
    except msgspec.DecodeError as error:
        raise ManifestRefused(f"it is no manifest that this version knows: {error}") from error
    if manifest.version != _VERSION:
        raise ManifestRefused(f"it has version {manifest.version}, and {_VERSION} alone can be read")
    if manifest.encryption is not None:
        raise ManifestRefused("the segment is encrypted, and mpbroker has no keys")
    if manifest.compression:
        raise ManifestRefused("the segment is compressed as a whole, by the plug-in")
    parts = [manifest.segment_indexes.get(name) or _Part(-1, 0) for name in _INDEXES]
    sizes = IndexSizes(*(part.size for part in parts))
    if any(part.size and part.position != at for part, at in zip(parts, sizes.positions, strict=True)):
        raise ManifestRefused("the parts of its indexes lie in another order")
    return manifest.chunk_index.original_file_size, sizes
