"""Fences and welcomes as a handler gets them."""

from __future__ import annotations

from mpbroker.protocol.messages import (
    ProduceRequest,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, for_python, request_frame, topic_image

TOPIC = topic_image("t", 1)


def produce(codec: Codec = Codec.NONE, acks: int = -1) -> bytes:
    batch = bytes(build_batch([NewRecord(b"k", b"v", -1)], codec=codec))
    batch = for_python(batch) if codec is not Codec.NONE else batch
    data = [ProduceRequest.PartitionProduceData(0, batch)]
    request = ProduceRequest(None, acks, 1000, [ProduceRequest.TopicProduceData("t", TOPIC.topic_id, data)])
    return request_frame(0, 7, request)


def kinds(made: Rig) -> list[tuple[int, int]]:
    return sorted((reply.connection, reply.kind) for reply in made.processor.replies())
