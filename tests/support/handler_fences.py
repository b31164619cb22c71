"""Fences and welcomes as a handler gets them."""

from __future__ import annotations

from collections.abc import Iterable

from mpbroker.ipc.metadata import TopicImage
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, for_python, request_frame, topic_image

TOPIC = topic_image("t", 1)


def produce(
    codec: Codec = Codec.NONE,
    acks: int = -1,
    *,
    topic: TopicImage = TOPIC,
    partitions: Iterable[int] = (0,),
    value: bytes = b"v",
    native: bool = False,
) -> bytes:
    """Return a produce request of one record for each partition. `native`: the turn unpacks it itself."""
    batch = bytes(build_batch([NewRecord(b"k", value, -1)], codec=codec))
    batch = batch if codec is Codec.NONE or native else for_python(batch)
    data = [ProduceRequest.PartitionProduceData(number, batch) for number in partitions]
    named = ProduceRequest.TopicProduceData(topic.name, topic.topic_id, data)
    return request_frame(0, 7, ProduceRequest(None, acks, 1000, [named]))


def kinds(made: Rig) -> list[tuple[int, int]]:
    return sorted((reply.connection, reply.kind) for reply in made.processor.replies())
