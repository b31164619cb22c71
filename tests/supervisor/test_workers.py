"""Workers of a broker: hung ones are replaced; under load their number changes without a failed request."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from mpbroker.cli.errors import exit_code_of
from mpbroker.ipc import topology
from mpbroker.ipc.control_client import ControlError
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from shm.region import Region
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import create_topic, served
from tests.support.worker_load import Load, control, names, pids

HANG_TIMEOUT_S = 3
HEAVY_BYTES = 1 << 18  # a frame of this size is taken for a heavy one before it is looked at


def started(directory: Path, *flags: str) -> Iterator[Mpbroker]:
    directory.mkdir()
    with served(Mpbroker(directory, flags=("--processors", "2", *flags))) as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    """A broker in which a process may stand still for as long as a test wants."""
    yield from started(tmp_path / "broker", "-o", "handler.hang.timeout.ms=3600000")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Mpbroker]:
    yield from started(tmp_path / "watched", "-o", f"handler.hang.timeout.ms={HANG_TIMEOUT_S * 1000}")


def kept_hung(pid: int) -> int:
    """Stopped again, should somebody have all that runs go on, as after a measurement; the same id."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    return pid


def can_create(broker: Mpbroker, topic: str) -> bool:
    try:
        create_topic(broker.bootstrap, topic, 1)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
    return True


@pytest.fixture
def load(broker: Mpbroker) -> Iterator[Load]:
    create_topic(broker.bootstrap, "load", 1)
    made = Load(broker.bootstrap, "load")
    yield made
    made.end()


@pytest.mark.parametrize(
    "name", ["handler 0", "processor 0", "acceptor", "coordinator", "log 0", "cleaner", "scrubber"]
)
def test_a_hung_process_is_replaced(watched: Mpbroker, name: str) -> None:
    broker = watched
    create_topic(broker.bootstrap, "before", 1)
    hung = pids(broker)[name]
    eventually(lambda: pids(broker)[name] not in (kept_hung(hung), 0), f"{name} is replaced")
    assert not psutil.pid_exists(hung)
    # Until the successor is up, the answer may be a retriable error, which this client does not retry.
    eventually(lambda: can_create(broker, "after"), "a topic is created")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    told: list[KafkaError | None] = []
    producer.produce("after", b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(PATIENCE_S)
    assert told == [None]
    assert f"{name} (pid {hung}) has not moved for {HANG_TIMEOUT_S} s: it is killed" in broker.output()
    assert broker.output().count("is killed") == 1, broker.output()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_long_request_is_no_hang_and_holds_up_nobody(watched: Mpbroker, codec: Codec) -> None:
    """Gzip's slowest level takes longer for this batch, in one call, than a handler may be silent. With zstd
    its frame is a small one, as those that take no time.
    """
    broker = watched
    value = bytes(random.Random(1).choices(b"ab", k=1_500_000))
    batch = bytes(build_batch([NewRecord(value)], codec=codec, level=19 if codec else None))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=PATIENCE_S * 1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                "heavy", partition_data=[ProduceRequest.PartitionProduceData(0, batch)]
            )
        ],
    )
    frame = b"".join(encode_request_frame(RequestHeader(ApiKey.PRODUCE, 7, 1, "heavy"), request))
    assert (len(frame) < HEAVY_BYTES) == (codec is Codec.ZSTD)
    configs = {"compression.type": "gzip", "compression.gzip.level": "9", "max.message.bytes": str(16 << 20)}
    before = pids(broker)
    with frames.connected(broker.address) as connection:
        assert frames.exchange(connection, frames.create_topic("heavy", 1, configs))[0] == 0
        assert frames.exchange(connection, frames.create_topic("light", 1))[0] == 0
    answers: list[int] = []

    def send_heavy() -> None:
        with frames.connected(broker.address, timeout_s=PATIENCE_S * 3) as connection:
            connection.sendall(frame)
            size = int.from_bytes(frames.receive(connection, 4))
            _, response = decode_response_frame(ApiKey.PRODUCE, 7, frames.receive(connection, size))
            answers.append(response.responses[0].partition_responses[0].error_code)

    start = time.monotonic()
    sending = threading.Thread(target=send_heavy)
    sending.start()
    light, served = frames.produce("light", 1, 10), 0
    with frames.connected(broker.address) as connection:
        while sending.is_alive():
            assert frames.exchange(connection, light)[0] == 0
            served += 1
    sending.join()
    assert answers == [0]
    assert time.monotonic() - start > HANG_TIMEOUT_S, "it was not long"
    assert served > 100
    assert pids(broker) == before, broker.output()


def test_a_supervisor_that_was_away_accuses_nobody(watched: Mpbroker) -> None:
    """As after a suspended machine or a debugger: all stop, for longer than the limit, and go on."""
    broker = watched
    before = pids(broker)
    members = broker.tree().members()
    for member in members:
        member.suspend()
    away_until = time.monotonic() + HANG_TIMEOUT_S + 1
    until(lambda: time.monotonic() > away_until, "the clock goes on")
    for member in members:
        member.resume()
    create_topic(broker.bootstrap, "after", 1)
    assert pids(broker) == before
    assert "killed" not in broker.output()


def test_resizing_under_load_fails_no_request(broker: Mpbroker, load: Load) -> None:
    load.goes_on()
    sizes = [(handlers, processors) for handlers in (4, 2, 1, 2) for processors in (4, 2, 1, 2, 2)]
    before = (2, 2)
    for wanted in sizes:
        handlers, processors = wanted
        answer = control(broker).call("resize", handlers=handlers, processors=processors)
        assert answer == {"handlers": handlers, "processors": processors}
        assert names(broker, "handler") == {f"handler {n}" for n in range(handlers)}
        assert names(broker, "processor") == {f"processor {n}" for n in range(processors)}
        for kind, old, new in zip(("handlers", "processors"), before, wanted, strict=True):
            said = f"resizing {kind} from {old} to {new}"
            assert old == new or said in broker.output()
        before = wanted
    load.goes_on()
    load.end()
    assert load.errors == []
    assert load.acked == load.read == load.sent
    assert "ERROR" not in broker.output()
    assert "was replaced" not in broker.output()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"handlers": 17}, "cannot resize handlers from 2 to 17: one step may go from half of that"),
        ({"processors": 0}, "cannot resize processors from 2 to 0: the number must lie in 1.."),
        ({"processors": 9}, r"from half of that \(1\) to 6"),
    ],
)
def test_a_step_that_is_too_large_is_refused(broker: Mpbroker, arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ControlError, match=said) as refused:
        control(broker).call("resize", **arguments)
    assert exit_code_of(refused.value) == 2
    assert len(names(broker, "handler")) == 2


def requests(broker: Mpbroker) -> int:
    return int(control(broker).call("status")["requests"])


def stuck(broker: Mpbroker, before: int) -> bool:
    """Return True if requests have come since there were `before`, and none while all processes turn."""
    public = Region.attach(broker.runtime_dir / PUBLIC_NAME, topology.PUBLIC_MAGIC, topology.LAYOUT_VERSION)
    now = requests(broker)
    roles = (topology.handler(1), topology.processor(0), topology.processor(1))
    pages = [topology.counter_page(public, role) for role in roles]
    enough = [page.turns + 2 for page in pages]
    until(
        lambda: all(page.turns >= turns for page, turns in zip(pages, enough, strict=True)), "all turn twice"
    )
    return before < now == requests(broker)


def test_a_slow_client_holds_up_the_handler_that_leaves_and_nobody_else(broker: Mpbroker) -> None:
    """An answer lies in the arena of its handler until it is sent; meanwhile the supervisor answers."""
    create_topic(broker.bootstrap, "wide", 200)
    metadata = struct.pack(">ihhih", 14, 3, 1, 7, -1) + struct.pack(">i", -1)
    first = pids(broker)["handler 0"]
    os.kill(first, signal.SIGSTOP)  # so that the other one has what these ask for
    slow = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = requests(broker)
        connection.connect(broker.address)
        connection.sendall(metadata * 1000)
        slow.append(connection)
        # One after the other: each goes to the handler that has less to do.
        eventually(lambda before=before: stuck(broker, before), "what it asked for waits for it")  # type: ignore[misc]
    os.kill(first, signal.SIGCONT)
    answers: list[dict[str, int]] = []
    resizing = threading.Thread(
        target=lambda: answers.append(control(broker).call("resize", handlers=1)), daemon=True
    )
    resizing.start()
    eventually(lambda: "resizing handlers from 2 to 1" in broker.output(), "it begins")
    with pytest.raises(ControlError, match="a change is under way"):
        control(broker).call("resize", handlers=2)
    create_topic(broker.bootstrap, "meanwhile", 1)
    assert answers == []
    for connection in slow:
        connection.close()
    resizing.join(PATIENCE_S)
    assert answers == [{"handlers": 1, "processors": 2}]
