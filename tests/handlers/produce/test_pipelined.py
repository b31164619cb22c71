"""Produces of one connection that are under way together: partitions get their batches in order."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.process import LOG_FENCE_CLOSE
from mpbroker.ipc.slots import SlotFlag, SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.handlers.test_fences import fence
from tests.support import handler_fences
from tests.support.handler_rig import PROCESSOR, Rig, request_frame, topic_image
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served

TOPIC = topic_image("t", 1, 2)
CONNECTION, OTHER = 1, 2
READY = (TOPIC,)


def produce(value: str, codec: Codec = Codec.NONE) -> bytes:
    return handler_fences.produce(codec, topic=TOPIC, value=value.encode())


def send(made: Rig, *kinds: str, connection: int = CONNECTION) -> None:
    """Send a produce of each kind: the turn passes plain ones on, Python gzip, in pieces if heavy."""
    for kind in kinds:
        codec = Codec.NONE if kind == "plain" else Codec.GZIP
        flags = SlotFlag.HEAVY if kind == "heavy" else 0
        made.processor.send(produce(kind, codec), connection=connection, flags=flags)


def codecs(made: Rig, connection: int = CONNECTION) -> list[int]:
    """Take the jobs; return the codecs of one connection's batches as the log gets them."""
    found = []
    for job in made.log.take():
        if job.connection == connection:
            found += [batch.attributes & 7 for batch in made.log.batches(job)]
        made.log.append(job)
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        ("gzip", "plain"),
        ("plain", "gzip", "plain"),
        ("heavy", "plain", "gzip"),
        ("gzip", "heavy", "plain", "heavy", "plain"),
    ],
)
def test_nothing_overtakes_on_its_way_through_a_handler(ready: Rig, kinds: tuple[str, ...]) -> None:
    send(ready, *kinds)
    seen: list[int] = []
    for _ in range(2 * len(kinds) + 4):
        ready.turn()
        seen += codecs(ready)
    assert seen == [0 if kind == "plain" else 1 for kind in kinds]


def test_the_turn_passes_on_again_what_comes_behind(ready: Rig) -> None:
    send(ready, "gzip", "plain")
    for _ in range(4):
        ready.turn()
        codecs(ready)
    send(ready, "plain")
    ready.handler.turn.serve(0)
    ready.handler.turn.flush()
    assert codecs(ready) == [0]


def test_other_connections_do_not_wait(ready: Rig) -> None:
    send(ready, "heavy")
    send(ready, "plain", connection=OTHER)
    ready.handler.take_and_serve(0)
    assert codecs(ready, OTHER) == [0]


def malformed(made: Rig) -> None:
    """Send a produce whose body ends early; its connection is closed."""
    made.processor.send(produce("cut")[:-4], connection=CONNECTION)


@pytest.mark.parametrize("behind", [("plain",), ("gzip", "plain"), ("heavy", "plain")])
@pytest.mark.parametrize("at_once", [True, False])
def test_behind_a_produce_that_closes_the_connection_nothing_is_appended(
    ready: Rig, behind: tuple[str, ...], at_once: bool
) -> None:
    malformed(ready)
    if not at_once:
        ready.turn()
    send(ready, *behind)
    for _ in range(4):
        ready.turn()
    assert codecs(ready) == []
    kinds = [reply.kind for reply in ready.processor.replies()]
    assert kinds == [SlotKind.CLOSE] * (1 + len(behind))


def test_a_connection_is_served_whose_channel_had_a_refused_one(ready: Rig) -> None:
    malformed(ready)
    ready.turn()
    following = CONNECTION + topology.CHANNELS_PER_PROCESSOR
    send(ready, "plain", connection=following)
    ready.turn()
    assert codecs(ready, following) == [0]
    send(ready, "plain", connection=following)
    ready.handler.turn.serve(0)
    ready.handler.turn.flush()
    assert codecs(ready, following) == [0], "the turn passes on again"


def test_a_log_worker_that_dies_closes_what_waits(ready: Rig) -> None:
    send(ready, "heavy", "plain", "gzip")
    ready.handler.take_and_serve(0)
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    closed = [reply.kind for reply in ready.processor.replies()]
    assert closed == [SlotKind.CLOSE] * 3
    assert len(ready.handler.produces) == 0


def test_a_processor_that_dies_takes_what_waits_along(ready: Rig) -> None:
    send(ready, "heavy", "plain")
    ready.handler.take_and_serve(0)
    fence(ready, PROCESSOR, alive=False)
    ready.turn()
    assert len(ready.handler.produces) == 0
    assert not ready.handler.scheduler.has_work()
    assert codecs(ready) == []


# ---- a whole broker

REQUESTS = 200


@pytest.fixture
def window_broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path, flags=["--handlers", "2", "--log-workers", "2"])) as made:
        yield made


def sequence(number: int, codec: Codec, name: str) -> bytes:
    """An idempotent producer's request number `number`: one record for each of two partitions."""
    batch = bytes(
        build_batch(
            [NewRecord(b"%06d" % number)],
            codec=codec,
            producer_id=4711,
            producer_epoch=0,
            base_sequence=number,
        )
    )
    data = [ProduceRequest.PartitionProduceData(partition, batch) for partition in range(2)]
    of_topic = ProduceRequest.TopicProduceData(name, partition_data=data)
    return request_frame(0, 7, ProduceRequest(None, -1, 30_000, [of_topic]))


def test_a_pipelining_client_finds_its_sequences_in_order(window_broker: Mpbroker) -> None:
    """Any other order would be answered with OUT_OF_ORDER_SEQUENCE_NUMBER."""
    name = "pipelined"
    create_topic(window_broker.bootstrap, name, 2)
    kinds = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.NONE, Codec.LZ4)
    stream = b"".join(sequence(n, kinds[n % len(kinds)], name) for n in range(REQUESTS))
    with socket.create_connection(window_broker.address, timeout=PATIENCE_S) as client:
        client.sendall(stream)
        for number in range(REQUESTS):
            size = int.from_bytes(frames.receive(client, 4))
            _, response = decode_response_frame(0, 7, frames.receive(client, size))
            (of_topic,) = response.responses
            found = [(one.error_code, one.base_offset) for one in of_topic.partition_responses]
            assert found == [(0, number)] * 2, number
