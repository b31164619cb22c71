"""Real clients against a handler: a thread carries frames between their sockets and the rings."""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc.calls import AllocateProducerIds, ProducerIds
from mpbroker.ipc.slots import SlotKind
from tests.support.handler_rig import Rig, rig, topic_image
from tests.support.polling import PATIENCE_S

TOPIC = topic_image("orders", 1, partitions=2)


class Wire(threading.Thread):
    """Processor, log process and coordinator in one thread around one handler."""

    def __init__(self, made: Rig, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self.made = made
        self.selector = selectors.DefaultSelector()
        self.selector.register(listening, selectors.EVENT_READ, None)
        self.listening = listening
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, bytes] = {}
        self.produced = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                for key, _ in self.selector.select(0.005):
                    self.accept() if key.data is None else self.read(key.data)
                self.made.turn()
                self.serve_peers()
                self.made.turn()
                self.write()
        except BaseException as error:
            self.failure = error

    def accept(self) -> None:
        accepted, _ = self.listening.accept()
        connection = accepted.fileno()
        self.sockets[connection], self.received[connection] = accepted, b""
        self.selector.register(accepted, selectors.EVENT_READ, connection)

    def close(self, connection: int) -> None:
        if (found := self.sockets.pop(connection, None)) is not None:
            self.selector.unregister(found)
            found.close()

    def read(self, connection: int) -> None:
        try:
            data = self.sockets[connection].recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.close(connection)
            return
        rest = self.received[connection] + data
        while len(rest) >= 4 and len(rest) >= (size := struct.unpack_from(">i", rest)[0] + 4):
            self.made.processor.send(rest[:size], connection=connection, room=8192)
            rest = rest[size:]
        self.received[connection] = rest

    def serve_peers(self) -> None:
        for job in self.made.log.take():
            self.produced += sum(batch.record_count for batch in self.made.log.batches(job))
            frame = self.made.log.append(job)
            if frame is not None and job.acks:
                self.send(job.connection, frame)
        for call, message in self.made.coordinator.take():
            if isinstance(message, AllocateProducerIds):
                self.made.coordinator.answer(call, ProducerIds(1000, 10))

    def write(self) -> None:
        for reply in self.made.processor.replies():
            if reply.kind == SlotKind.SEND:
                self.send(reply.connection, self.made.processor.frame_of(reply))
            elif reply.kind == SlotKind.CLOSE:
                self.close(reply.connection)

    def send(self, connection: int, frame: bytes) -> None:
        if connection in self.sockets:
            self.sockets[connection].sendall(frame)


@contextmanager
def served() -> Iterator[tuple[str, Wire]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config = BrokerConfig(listeners=(Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port),))
        with rig(config) as made:
            made.publish(TOPIC)
            wire = Wire(made, listening)
            wire.start()
            try:
                yield f"127.0.0.1:{port}", wire
            finally:
                wire.stopping.set()
                wire.join()
                for connection in list(wire.sockets):
                    wire.close(connection)
            assert wire.failure is None


@pytest.mark.parametrize(
    "settings", [{}, {"enable.idempotence": True}, {"acks": 1, "compression.type": "gzip"}]
)
def test_librdkafka_produces(settings: dict[str, Any]) -> None:
    from confluent_kafka import Producer

    with served() as (address, wire):
        producer = Producer({"bootstrap.servers": address, **settings})
        errors: list[Any] = []
        for i in range(200):
            producer.produce(
                "orders", b"value", b"key", partition=i % 2, on_delivery=lambda e, _m: errors.append(e)
            )
        assert producer.flush(PATIENCE_S) == 0
        assert errors == [None] * 200
        assert wire.produced == 200


def test_aiokafka_produces() -> None:
    from aiokafka import AIOKafkaProducer

    async def use(address: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        await producer.send_and_wait("orders", b"value")
        await producer.stop()

    with served() as (address, wire):
        asyncio.run(use(address))
        assert wire.produced == 1
