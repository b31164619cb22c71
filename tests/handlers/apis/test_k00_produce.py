"""What the slow path of Produce keeps in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mpbroker.handlers.apis import k00_produce
from mpbroker.handlers.requests.limits import ENCODED_AT_ONCE
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, request_frame, topic_image
from tests.support.handler_rig import rig as make_rig

PRODUCE, VERSION = 0, 13
ZIPPED = topic_image("zipped", 1, partitions=4, compression_type="uncompressed")
MESSAGE_TOO_LARGE = 10


@pytest.fixture(name="ready")
def _ready() -> Iterator[Rig]:
    with make_rig() as made:
        made.publish(ZIPPED)
        yield made


def produce(partitions: int, value_bytes: int) -> ProduceRequest:
    record = NewRecord(bytes(value_bytes), timestamp=time.time_ns() // 1_000_000)
    batch = bytes(build_batch([record], codec=Codec.ZSTD))
    named = [ProduceRequest.PartitionProduceData(number, batch) for number in range(partitions)]
    return ProduceRequest(None, -1, 30_000, [ProduceRequest.TopicProduceData("", ZIPPED.topic_id, named)])


def test_batches_that_are_compressed_anew_are_bounded_together(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes for each could stand for the memory of the whole host."""
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 100_000)
    ready.processor.send(request_frame(PRODUCE, VERSION, produce(4, 40_000)))
    for _ in range(10):
        ready.turn()
    assert ready.log.take() == []
    (topic,) = ready.answer(PRODUCE, VERSION).responses
    assert [one.error_code for one in topic.partition_responses] == [MESSAGE_TOO_LARGE] * 4


def test_nothing_is_appended_while_a_long_refusal_is_encoded(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with an answer that is encoded in pieces: the request has not ended when it has failed."""
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 100_000)
    request = produce(1, 100)
    request.topic_data[0].partition_data *= ENCODED_AT_ONCE + 1
    ready.processor.send(request_frame(PRODUCE, VERSION, request))
    turns_until_idle(ready)
    assert ready.log.take() == []
    (topic,) = ready.answer(PRODUCE, VERSION).responses
    assert {one.error_code for one in topic.partition_responses} == {MESSAGE_TOO_LARGE}
    assert len(topic.partition_responses) == ENCODED_AT_ONCE + 1


def turns_until_idle(ready: Rig) -> None:
    ready.turn()
    while ready.handler.scheduler.has_work():
        ready.turn()


def test_as_much_as_the_bound_is_appended(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k00_produce, "REBUILT_BYTES_MAX", 200_000)
    ready.processor.send(request_frame(PRODUCE, VERSION, produce(4, 40_000)))
    for _ in range(10):
        ready.turn()
    assert len(ready.log.take()) == 1
