"""TLS and SASL connections while processors come and go, and while the broker stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import MetadataRequest, ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench.brokers import HOST
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.quota_client import PRODUCE, VERSIONS
from tests.support.real_brokers import control, create_topic, served, stop_cleanly
from tests.support.secure_broker import PLAIN_PASSWORD, Closed, SecureBroker
from tests.support.socket_client import pids_of
from tests.support.worker_load import Load, names


@pytest.fixture(name="broker")
def _broker(tmp_path: Path) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path / "broker", processors=2)) as made:
        yield made


def produce_value(topic: str, value: bytes) -> ProduceRequest:
    batch = bytes(build_batch([NewRecord(value)]))
    data = ProduceRequest.PartitionProduceData(0, batch)
    return ProduceRequest(None, -1, 30_000, [ProduceRequest.TopicProduceData(topic, partition_data=[data])])


def security(broker: SecureBroker, listener: str) -> dict[str, str]:
    found = {"ssl.ca.location": str(broker.ca), "security.protocol": "SSL"}
    if listener == "BOTH":
        found |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": PLAIN_PASSWORD,
        }
    return found


def test_resizing_processors_fails_no_request(broker: SecureBroker) -> None:
    loads = []
    for listener in ("TLS", "BOTH"):
        create_topic(broker.bootstrap, f"load-{listener}", 1)
        loads.append(Load(broker.address_of(listener), f"load-{listener}", security(broker, listener)))
    try:
        for load in loads:
            load.goes_on()
        for processors in (4, 2, 1, 2, 1):
            control(broker).call("resize", processors=processors)
            assert names(broker, "processor") == {f"processor {n}" for n in range(processors)}
        for load in loads:
            load.goes_on()
    finally:
        for load in loads:
            load.end()
    for load in loads:
        assert load.errors == []
        assert load.acked == load.read == load.sent
    assert "ERROR" not in broker.output()


@pytest.mark.parametrize("listener", ["TLS", "SASL", "BOTH"])
def test_what_is_under_way_is_answered_when_the_broker_stops(broker: SecureBroker, listener: str) -> None:
    create_topic(broker.bootstrap, "t", 1)
    (log_pid,) = pids_of(broker, "log")
    with broker.connect(listener) as busy, broker.connect(listener) as idle:
        for client in (busy, idle):
            if listener != "TLS":
                assert client.plain().error_code == 0
            client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        before = control(broker).call("status")["requests"]
        os.kill(log_pid, signal.SIGSTOP)
        busy.send(busy.frame(ApiKey.PRODUCE, VERSIONS[PRODUCE], produce_value("t", b"x")))
        eventually(lambda: control(broker).call("status")["requests"] > before, "it is under way")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        assert idle.ends()
        os.kill(log_pid, signal.SIGCONT)
        answer = busy.answer(ApiKey.PRODUCE, VERSIONS[PRODUCE])
        assert [p.error_code for t in answer.responses for p in t.partition_responses] == [0]
        assert busy.ends()
    assert broker.process.wait(PATIENCE_S) == 0
    assert "ERROR" not in broker.output(), broker.output()


def test_a_handshake_that_never_ends_does_not_hold_up_the_stop(broker: SecureBroker) -> None:
    with broker.connect("SASL") as client:
        client.handshake("PLAIN")
        stop_cleanly(broker)
        with pytest.raises(Closed):
            client.token(b"\0ann\0x")


def test_who_logs_in_while_a_processor_leaves_is_let_in_or_closed(broker: SecureBroker) -> None:
    """Nobody waits for the handshakes of its connections; those of the other one go on."""
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((HOST, broker.ports["TLS"]), timeout=PATIENCE_S))
            for _ in range(4)
        ]
        talking = [stack.enter_context(broker.connect("BOTH")) for _ in range(4)]
        for client in talking:
            assert client.handshake("PLAIN").error_code == 0
        assert control(broker).call("resize", processors=1)["processors"] == 1
        let_in = []
        for client in talking:
            with contextlib.suppress(Closed):
                let_in.append(client.token(f"\0ann\0{PLAIN_PASSWORD}".encode()).error_code)
        # They were dealt out in turn.
        assert let_in == [0, 0]
        closed = []
        for plain in silent:
            plain.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                closed.append(plain.recv(1))
        assert closed == [b"", b""]
    with broker.connect("TLS") as client:
        client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
