"""Clients that do not read their answers fill the memory for them; whoever reads is served all the same."""

from __future__ import annotations

import shlex
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.handlers.requests import response_backpressure
from mpbroker.ipc.slots import Reply, SlotKind
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.records.compression import Codec
from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker
from tests.handlers.test_heavy import LIGHT
from tests.support import full_broker
from tests.support.client_tools import eventually
from tests.support.handler_fences import TOPIC, kinds, produce
from tests.support.handler_rig import PROCESSOR, Rig, channel_of, fence, rig
from tests.support.real_brokers import stop_cleanly

COMMAND = (
    f"{shlex.quote(sys.executable)} -m tests.support.full_broker serve --listeners PLAINTEXT://{HOST}:{{port}}"
    " --log-dirs {log_dir} --processors 1 --handlers 1"
)
DEAF = 40
# Of topics that do not exist and are not to be made: the answer has all their names.
NAMES = [f"{number:0200d}".encode() for number in range(4_000)]
METADATA = frames.frame(
    ApiKey.METADATA,
    4,
    struct.pack(">i", len(NAMES)) + b"".join(struct.pack(">h", len(n)) + n for n in NAMES) + b"\0",
)


@pytest.fixture(name="full")
def _full() -> Iterator[tuple[Rig, Reply]]:
    """A handler whose arena holds one answer and no more, and that answer."""
    with rig(reply_limit_bytes=1) as made:
        made.publish(TOPIC)
        made.processor.send(LIGHT, connection=1)
        made.turn()
        (answer,) = made.processor.replies()
        yield made, answer


def is_told(made: Rig) -> bool:
    return made.memory.words("replies_out").load(0) != 0


def test_an_answer_waits_for_room(full: tuple[Rig, Reply]) -> None:
    made, answer = full
    for connection in (2, 3):
        made.processor.send(LIGHT, connection=connection)
        made.turn()
        assert made.processor.replies() == []
    assert is_told(made)
    assert made.handler.sleep_ms() <= 10
    for connection in (2, 3):
        made.processor.give_back(answer)
        made.turn()
        (answer,) = made.processor.replies()
        assert (answer.connection, answer.kind) == (connection, SlotKind.SEND)
    assert not is_told(made)
    assert made.handler.sleep_ms() > 10


def connection_id(made: Rig, connection: int) -> str:
    return made.processor.sessions.of(channel_of(connection), connection).connection_id


def test_after_a_while_its_connection_is_closed(
    full: tuple[Rig, Reply], caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = full
    made.processor.send(LIGHT, connection=2)
    made.turn()
    made.handler.broker.waiting.retry(made.handler.broker.monotonic_ms() + response_backpressure.PATIENCE_MS)
    made.handler.flush()
    assert kinds(made) == [(2, SlotKind.CLOSE)]
    assert not is_told(made)
    said = f"closing connection {connection_id(made, 2)} on PLAINTEXT: there was no room for its answer to "
    assert caplog.records[-1].getMessage().startswith(f"{said}API key 19 ")


def test_what_fails_when_there_is_room_is_closed_and_named(
    full: tuple[Rig, Reply], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, answer = full
    made.processor.send(LIGHT, connection=2)
    made.turn()
    monkeypatch.setattr(made.handler.broker.responses, "_allocate", None)
    made.processor.give_back(answer)
    made.turn()
    assert kinds(made) == [(2, SlotKind.CLOSE)]
    whose = f"connection {connection_id(made, 2)} on PLAINTEXT"
    assert f"closing {whose}: a response or append that waited failed" in [
        record.getMessage() for record in caplog.records
    ]


def test_no_more_waits_than_there_is_memory_for(
    full: tuple[Rig, Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, answer = full
    monkeypatch.setattr(response_backpressure, "BYTES_MAX", 1)
    for connection in (2, 3):
        made.processor.send(LIGHT, connection=connection)
    made.turn()
    assert kinds(made) == [(3, SlotKind.CLOSE)]
    made.processor.give_back(answer)
    made.turn()
    assert kinds(made) == [(2, SlotKind.SEND)]


def test_nothing_waits_for_a_dead_processor(full: tuple[Rig, Reply]) -> None:
    made, _ = full
    made.processor.send(LIGHT, connection=2)
    made.processor.send(produce(Codec.GZIP), connection=3)
    made.turn()
    fence(made, PROCESSOR, alive=False)
    assert not is_told(made)
    made.turn()
    assert made.log.take() == []
    assert made.handler.intake.open == {}
    assert made.handler.arena.in_use_bytes == 0


def test_an_append_waits_for_room(full: tuple[Rig, Reply]) -> None:
    made, answer = full
    made.processor.send(produce(Codec.GZIP), connection=2)
    made.turn()
    assert made.processor.replies() == []
    assert made.log.take() == []
    made.processor.give_back(answer)
    made.turn()
    made.append()
    assert kinds(made) == [(2, SlotKind.SEND)]


def test_an_append_that_waits_is_lost_with_the_log_process(full: tuple[Rig, Reply]) -> None:
    """Check that the successor does not append it: the processors take it for lost."""
    made, answer = full
    made.processor.send(LIGHT, connection=2)
    made.processor.send(produce(Codec.GZIP), connection=3)
    made.turn()
    fence(made, LOG, alive=False)
    fence(made, LOG, alive=False, stage=3)
    made.welcome(LOG)
    made.processor.give_back(answer)
    made.turn()
    made.turn()
    assert kinds(made) == [(2, SlotKind.SEND), (3, SlotKind.CLOSE)]
    assert made.log.take() == []
    assert made.handler.intake.open == {}


def test_a_handler_that_goes_leaves_nobody_waiting(
    full: tuple[Rig, Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = full
    monkeypatch.setattr("mpbroker.handlers.process.STOP_PATIENCE_MS", 0)
    made.processor.send(LIGHT, connection=2)
    made.processor.send(produce(Codec.GZIP), connection=3)
    made.handler.finish()
    assert kinds(made) == [(2, SlotKind.CLOSE), (3, SlotKind.CLOSE)]
    assert not is_told(made)


def test_a_successor_begins_with_nothing_waiting(full: tuple[Rig, Reply]) -> None:
    made, _ = full
    made.processor.send(LIGHT, connection=2)
    made.turn()
    Rig(made.memory)
    assert not is_told(made)


def test_the_deaf_do_not_take_the_others_with_them(tmp_path: Path) -> None:
    broker = Mpbroker(tmp_path, template=COMMAND)
    deaf: list[socket.socket] = []
    try:
        broker.start()
        for _ in range(DEAF):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(broker.address)
            connection.sendall(METADATA)
            deaf.append(connection)
        with frames.connected(broker.address) as honest:
            for _ in range(20):
                honest.sendall(METADATA)
                size = int.from_bytes(frames.receive(honest, 4))
                assert size > full_broker.REPLY_BYTES // 10
                frames.receive(honest, size)
        eventually(lambda: "made no progress" in broker.output(), "the log says who went")
        assert "no room for its answer" not in broker.output()
        for connection in deaf:
            connection.close()
        stop_cleanly(broker)
    finally:
        broker.kill()
