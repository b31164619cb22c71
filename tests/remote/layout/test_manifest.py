"""The manifest has what Aiven's plugin reads, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.manifest import CHUNK_BYTES, encode_manifest
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
