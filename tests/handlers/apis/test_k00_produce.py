"""What the slow path of Produce keeps in memory."""

from __future__ import annotations

import time

import pytest

from mpbroker.handlers.apis import k00_produce
from mpbroker.handlers.requests.limits import ENCODED_AT_ONCE
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, topic_image

PRODUCE, VERSION = 0, 13
ZIPPED = topic_image("zipped", 1, partitions=4, compression_type="uncompressed")
MESSAGE_TOO_LARGE = 10
READY = (ZIPPED,)


def produce(partitions: int, value_bytes: int) -> ProduceRequest:
    record = NewRecord(bytes(value_bytes), timestamp=time.time_ns() // 1_000_000)
    batch = bytes(build_batch([record], codec=Codec.ZSTD))
    named = [ProduceRequest.PartitionProduceData(number, batch) for number in range(partitions)]
    return ProduceRequest(None, -1, 30_000, [ProduceRequest.TopicProduceData("", ZIPPED.topic_id, named)])


def test_batches_that_are_compressed_again_are_bounded_together(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the sum of their sizes: few compressed bytes may decompress to more than the host's memory."""
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 100_000)
    (topic,) = ready.ask(PRODUCE, VERSION, produce(4, 40_000)).responses
    assert ready.log.take() == []
    assert [one.error_code for one in topic.partition_responses] == [MESSAGE_TOO_LARGE] * 4


def test_nothing_is_appended_while_a_long_refusal_is_encoded(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with an answer that is encoded in pieces: the request has not ended when it has failed."""
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 100_000)
    request = produce(1, 100)
    request.topic_data[0].partition_data *= ENCODED_AT_ONCE + 1
    (topic,) = ready.ask(PRODUCE, VERSION, request).responses
    assert ready.log.take() == []
    assert {one.error_code for one in topic.partition_responses} == {MESSAGE_TOO_LARGE}
    assert len(topic.partition_responses) == ENCODED_AT_ONCE + 1


def test_as_much_as_the_bound_is_appended(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 200_000)
    ready.send(PRODUCE, VERSION, produce(4, 40_000))
    ready.work_off()
    assert len(ready.log.take()) == 1
