"""Produce requests of transactions, and the coordinator and log worker that a test plays for them."""

from __future__ import annotations

from typing import Any

from mpbroker.ipc.calls import Acknowledged, CheckedTransaction, CheckTransaction, EndHold
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, topic_image

PRODUCE = 0
TOPIC = topic_image("t", 1, partitions=3)
TV1, TV2 = 11, 12
HOLD = 77


def batch(*, transactional: bool = True, producer: int = 9, epoch: int = 1, key: bytes = b"k") -> bytes:
    return bytes(
        build_batch(
            [NewRecord(key, b"v", -1)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=4,
            transactional=transactional,
        )
    )


def request(
    *batches: tuple[int, bytes], transactional_id: str | None = "tx", acks: int = -1
) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(*one) for one in batches]
    topic = ProduceRequest.TopicProduceData("t", TOPIC.topic_id, data)
    return ProduceRequest(transactional_id, acks, 1000, [topic])


def send(ready: Rig, version: int, asked: ProduceRequest, connection: int = 7) -> None:
    ready.send(PRODUCE, version, asked, connection=connection)


def asked(ready: Rig) -> tuple[Any, CheckTransaction]:
    """The question that the coordinator got; the request waits, and not as a parked one."""
    assert ready.processor.replies() == []
    ((call, message),) = ready.coordinator.take()
    assert isinstance(message, CheckTransaction)
    return call, message


def ask(
    ready: Rig, version: int, request: ProduceRequest, connection: int = 7
) -> tuple[Any, CheckTransaction]:
    """Send a request that the coordinator is asked about."""
    send(ready, version, request, connection)
    return asked(ready)


def say(ready: Rig, call: Any, *errors: int, hold: int = 0) -> None:
    ready.reply(call, CheckedTransaction(list(errors), hold))


def errors(ready: Rig, version: int) -> list[int]:
    response = ready.answer(PRODUCE, version)
    (topic,) = response.responses
    return [partition.error_code for partition in topic.partition_responses]


def ended(ready: Rig) -> list[int]:
    """The holds that the coordinator heard the end of; it says that it did."""
    found = []
    for call, message in ready.coordinator.take():
        assert isinstance(message, EndHold)
        ready.coordinator.answer(call, Acknowledged())
        found.append(message.hold)
    ready.turn()
    return found


def kinds(ready: Rig) -> list[SlotKind]:
    return [SlotKind(reply.kind) for reply in ready.processor.replies()]
