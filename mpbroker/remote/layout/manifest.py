"""The object `.rsm-manifest` of a segment, as Aiven's plugin reads it. (Aiven: SegmentManifestV1.)

Nothing here reads one: the ledger has all that it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mpbroker.protocol.uuids import uuid_text
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.object_names import SegmentObjects

# The pieces that the plugin fetches a segment in.
CHUNK_BYTES: Final = 4 << 20
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
        "version": "1",
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
