"""The manifest has what Aiven's plugin reads, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.manifest import CHUNK_BYTES, ManifestRefused, decode_manifest, encode_manifest
from mpbroker.remote.layout.object_names import SegmentObjects

OBJECTS = SegmentObjects(
    "topic1", uuid_bytes("lZ6vvmajTWKDBUTV6SQAtQ"), 42, 0, uuid_bytes("adh9f8BMS4anaUnD8KWfWg")
)


def manifest(**changes: Any) -> bytes:
    given: dict[str, Any] = {
        "end": 1001,
        "size": CHUNK_BYTES + 1000,
        "largest_ms": 1000000000,
        "epochs": ((0, 100), (1, 200), (2, 300)),
        "index_sizes": IndexSizes(1, 1, 1, 1, 1),
        "broker_id": 2,
        "time_ms": 2000000000,
    }
    return encode_manifest(OBJECTS, **given | changes)


def test_it_is_what_the_plugin_writes() -> None:
    """As in the plugin's own test of SegmentManifestV1, but for sizes."""
    assert manifest().decode() == (
        '{"version":"1",'
        '"chunkIndex":{"type":"fixed","originalChunkSize":4194304,'
        '"originalFileSize":4195304,"transformedChunkSize":4194304,"finalTransformedChunkSize":1000},'
        '"segmentIndexes":{'
        '"offset":{"position":0,"size":1},'
        '"timestamp":{"position":1,"size":1},'
        '"producerSnapshot":{"position":2,"size":1},'
        '"leaderEpoch":{"position":3,"size":1},'
        '"transaction":{"position":4,"size":1}'
        "},"
        '"compression":false,"remoteLogSegmentMetadata":'
        '{"remoteLogSegmentId":{'
        '"topicIdPartition":{"topicId":"lZ6vvmajTWKDBUTV6SQAtQ","topicPartition":'
        '{"topic":"topic1","partition":42}},'
        '"id":"adh9f8BMS4anaUnD8KWfWg"},'
        '"startOffset":0,"endOffset":1000,'
        '"maxTimestampMs":1000000000,"brokerId":2,"eventTimestampMs":2000000000,'
        '"segmentLeaderEpochs":{"0":100,"1":200,"2":300}}}'
    )


PLUGINS = (
    b'{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":100,"originalFileSize":1000,'
    b'"transformedChunkSize":110,"finalTransformedChunkSize":110},"segmentIndexes":{'
    b'"offset":{"position":0,"size":1},"timestamp":{"position":1,"size":2},'
    b'"producerSnapshot":{"position":3,"size":3},"leaderEpoch":{"position":6,"size":4},"transaction":null},'
    b'"compression":false}'
)


ZSTD = (
    b'{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":1000000,"originalFileSize":1016464,'
    b'"transformedChunks":"KLUv/SAOcQAAAAAAAgAPQmEBAAAAQFo="},"segmentIndexes":{'
    b'"offset":{"position":0,"size":152},"timestamp":{"position":152,"size":204},'
    b'"producerSnapshot":{"position":356,"size":10},"leaderEpoch":{"position":366,"size":8},'
    b'"transaction":null},"compression":true,"remoteLogSegmentMetadata":{"txnIdxEmpty":true}}'
)


def test_a_segment_of_compressed_chunks_is_refused() -> None:
    with pytest.raises(ManifestRefused, match="is compressed as a whole"):
        decode_manifest(ZSTD)


def test_sizes_are_read() -> None:
    assert decode_manifest(manifest()) == (CHUNK_BYTES + 1000, IndexSizes(1, 1, 1, 1, 1))
    assert decode_manifest(PLUGINS) == (1000, IndexSizes(1, 2, 3, 4, 0))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        # As the plug-in writes it with encryption.enabled.
        (b'n":false', b'n":false,"encryption":{"dataKey":"k1:QGl5==","aad":"jogb=="}', "encrypted"),
        (b'"version":"1"', b'"version":"2"', "has version 2, and 1 alone can be read"),
        (b'"position":6', b'"position":7', "lie in another order"),
        (b'"compression"', b'"compress"', "no manifest that this version knows: .*compression"),
        (b"{", b"", "no manifest"),
    ],
)
def test_segments_that_are_stored_otherwise_are_refused(before: bytes, after: bytes, says: str) -> None:
    assert before in PLUGINS
    with pytest.raises(ManifestRefused, match=says):
        decode_manifest(PLUGINS.replace(before, after, 1))


def test_no_aborted_transactions_is_no_index() -> None:
    indexes = json.loads(manifest(index_sizes=IndexSizes(3, 4, 5, 6, 0)))["segmentIndexes"]
    assert indexes["transaction"] is None
    assert indexes["leaderEpoch"] == {"position": 12, "size": 6}


@pytest.mark.parametrize(
    ("size", "last"),
    [(1, 1), (CHUNK_BYTES, CHUNK_BYTES), (CHUNK_BYTES + 1, 1), (2 * CHUNK_BYTES, CHUNK_BYTES)],
)
def test_chunks_cover_the_segment(size: int, last: int) -> None:
    """The plugin counts them by size, and takes all but the last one for whole."""
    chunks = json.loads(manifest(size=size))["chunkIndex"]
    assert chunks["finalTransformedChunkSize"] == last
    count = -(-size // chunks["originalChunkSize"])
    assert (count - 1) * chunks["transformedChunkSize"] + last == size
