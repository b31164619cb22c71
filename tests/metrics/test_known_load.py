"""Every bean that tells of traffic against a load of which all is known, through each kind of listener."""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.process import IDLE_SLEEP_MS
from mpbroker.metrics import catalogue
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from tests.metrics.test_with_broker import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    REQUESTS,
    TOPICS,
    batch,
    create,
    fetch,
    produce,
)
from tests.support.client_tools import eventually
from tests.support.metered_client import Client, Meter
from tests.support.programs import stopped
from tests.support.real_brokers import served
from tests.support.secure_broker import Closed, RawClient, SecureBroker

SELECTOR = "kafka.server:type=socket-server-metrics,networkProcessor=0"
SOCKETS = "kafka.network:type=SocketServer,name="
CHANNEL = "kafka.network:type=RequestChannel,name="
PURGATORY = "kafka.server:type=DelayedOperationPurgatory,name="
TOPIC = "load"
REQUESTS_SENT = 7
HALF_BYTES = 300_000


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path_factory.mktemp("broker"))) as broker:
        with Client(broker) as client:
            create(client, TOPIC)
        eventually(lambda: Meter(broker).get(SELECTOR, "connection-count") == 0, "nobody is connected")
        yield broker


@pytest.fixture(name="seen")
def _seen(secure: SecureBroker) -> Meter:
    return Meter(secure)


@pytest.fixture(name="plain")
def _plain(secure: SecureBroker) -> Iterator[Client]:
    with Client(secure) as made:
        yield made
    eventually(lambda: Meter(secure).get(SELECTOR, "connection-count") == 0, "it is gone")


def exchange(client: RawClient, size: int = 100) -> tuple[int, int]:
    """Bytes that went there and came back."""
    frame = client.frame(ApiKey.PRODUCE, PRODUCE_VERSION, produce(TOPIC, batch(value=b"x" * size)))
    client.send(frame)
    return len(frame), len(client.raw_answer()) + 4


def stopped_role(broker: SecureBroker, role: str) -> AbstractContextManager[None]:
    members = [one.pid for one in broker.tree().members() if role in " ".join(one.cmdline())]
    assert members
    return stopped(*members)


@pytest.mark.parametrize("listener", ["OPEN", "SASL", "TLS", "BOTH"])
def test_a_load_is_counted_exactly(secure: SecureBroker, seen: Meter, listener: str) -> None:
    """Bytes are those of the protocol, encrypted or not; what a login says is not counted."""
    before, sent, received = seen.beans(SELECTOR)[SELECTOR], 0, 0
    with secure.connect(listener) as client:
        if listener in ("SASL", "BOTH"):
            client.plain()
        for number in range(REQUESTS_SENT):
            there, back = exchange(client, 1000 * number)
            sent, received = sent + there, received + back
        assert seen.get(SELECTOR, "connection-count") == before["connection-count"] + 1
    eventually(lambda: seen.get(SELECTOR, "connection-count") == before["connection-count"], "it is gone")
    after = seen.beans(SELECTOR)[SELECTOR]
    grown = {name: after[name] - before[name] for name in after}
    logins = int(listener != "OPEN")
    assert {name: grown[f"{name}-total"] for name in EXACT} == {
        "connection-creation": 1,
        "connection-close": 1,
        "incoming-byte": sent,
        "outgoing-byte": received,
        "request": REQUESTS_SENT,
        "response": REQUESTS_SENT,
        "successful-authentication": logins,
        "failed-authentication": 0,
        "successful-reauthentication": 0,
        "failed-reauthentication": 0,
    }
    assert after["request-size-max"] >= received / REQUESTS_SENT
    assert after["request-size-avg"] == after["outgoing-byte-total"] / after["request-total"]
    assert grown["select-total"] > 0
    assert grown["network-io-total"] >= (2 * REQUESTS_SENT if listener in ("OPEN", "SASL") else 0)
    assert after["io-waittime-total"] == after["io-wait-time-ns-total"] > before["io-wait-time-ns-total"]
    assert after["iotime-total"] == after["io-time-ns-total"] >= before["io-time-ns-total"]


EXACT = (
    "connection-creation",
    "connection-close",
    "incoming-byte",
    "outgoing-byte",
    "request",
    "response",
    "successful-authentication",
    "failed-authentication",
    "successful-reauthentication",
    "failed-reauthentication",
)


def test_a_login_that_fails(secure: SecureBroker, seen: Meter) -> None:
    before = seen.get(SELECTOR, "failed-authentication-total")
    with secure.connect("SASL") as client:
        assert client.plain(password="wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert seen.get(SELECTOR, "failed-authentication-total") == before + 1


def test_a_session_that_is_over_is_killed(secure: SecureBroker, seen: Meter) -> None:
    of_server = SOCKETS + "ExpiredConnectionsKilledCount"
    before = seen.get(of_server, "Value")
    assert seen.get(SELECTOR, "expired-connections-killed-count") == before
    with secure.connect("SHORT") as client:
        client.plain()

        def is_closed() -> bool:
            try:
                exchange(client)
            except Closed:
                return True
            return False

        eventually(is_closed, "its session ends")
    eventually(lambda: seen.get(of_server, "Value") == before + 1, "it is counted")
    assert seen.get(SELECTOR, "expired-connections-killed-count") == before + 1


def test_shares_of_time(seen: Meter) -> None:
    before = seen.take()
    eventually(
        lambda: seen.take().now_ns - before.now_ns > 2e6 * IDLE_SLEEP_MS, "two of the longest sleeps pass"
    )
    found = {bean.name: bean.attributes for bean in catalogue.beans(seen.take(), before)}
    idle = found["kafka.network:type=Processor,name=IdlePercent,networkProcessor=0"]["Value"]
    assert 0 < idle <= 1
    assert found[SOCKETS + "NetworkProcessorAvgIdlePercent"]["Value"] == idle
    assert found[SELECTOR]["io-wait-ratio"] == idle
    assert found[SELECTOR]["io-ratio"] == 1 - idle
    handlers = "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent"
    assert 0 < found[handlers]["Value"] <= 1


def test_memory_of_a_request_that_is_half_there(secure: SecureBroker, seen: Meter) -> None:
    def used() -> float:
        return seen.get(SOCKETS + "MemoryPoolUsed", "Value")

    whole = used() + seen.get(SOCKETS + "MemoryPoolAvailable", "Value")
    with secure.connect("OPEN") as client:
        client.send((HALF_BYTES * 2).to_bytes(4) + bytes((0, 0, 0, PRODUCE_VERSION)) + bytes(HALF_BYTES))
        eventually(lambda: used() >= HALF_BYTES, "it lies in the pool")
        assert used() + seen.get(SOCKETS + "MemoryPoolAvailable", "Value") == whole
    eventually(lambda: used() == 0, "it is given back")


def test_requests_that_wait_for_a_handler(secure: SecureBroker, seen: Meter) -> None:
    size = CHANNEL + "RequestQueueSize"
    clients = [Client(secure) for _ in range(3)]
    with stopped_role(secure, "handler"):
        for client in clients:
            client.send(ApiKey.METADATA, 9, m.MetadataRequest([]))
        eventually(lambda: seen.get(size, "Value") == 3, "all three wait")
    for client in clients:
        client.receive(ApiKey.METADATA, 9)
        client.close()
    eventually(lambda: seen.get(size, "Value") == 0, "none waits any more")
    eventually(lambda: seen.get(CHANNEL + "ResponseQueueSize", "Value") == 0, "no answer waits")
    assert seen.get(CHANNEL + "ResponseQueueSize,processor=0", "Value") == 0


def test_a_request_whose_client_leaves_is_counted_once(secure: SecureBroker, seen: Meter) -> None:
    """Its connection is closed while a handler has it; its answer comes later and is dropped."""
    count = f"{REQUESTS}RequestsPerSec,request=ListOffsets,version=5"
    asked = m.ListOffsetsRequest(topics=[])
    client = Client(secure)
    client.call(ApiKey.LIST_OFFSETS, 5, asked)
    eventually(lambda: seen.get(count) == 1, "the first has ended")
    with stopped_role(secure, "handler"):
        client.send(ApiKey.LIST_OFFSETS, 5, asked)
        eventually(lambda: seen.get(CHANNEL + "RequestQueueSize", "Value") == 1, "it waits for a handler")
        # With a reset: of a channel that is muted a plain end is noticed when it is read again, as in Kafka.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        eventually(lambda: seen.get(SELECTOR, "connection-count") == 0, "the processor knows that it left")
    eventually(lambda: seen.get(count) == 2, "it has ended")
    with Client(secure) as other:
        other.call(ApiKey.LIST_OFFSETS, 5, asked)
    eventually(lambda: seen.get(count) >= 3, "and so has the next")
    assert seen.get(count) == 3


def test_what_is_refused(plain: Client, seen: Meter) -> None:
    create(plain, "small", max_message_bytes="500")
    large, old = batch(value=bytes(1000)), bytearray(batch())
    old[16] = 1
    for data, code in ((large, ErrorCode.MESSAGE_TOO_LARGE), (bytes(old), None)):
        answer = plain.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("small", data))
        told = answer.responses[0].partition_responses[0].error_code
        assert told == code if code is not None else told
    assert seen.get(f"{TOPICS}BytesRejectedPerSec,topic=small") == len(large)
    assert seen.get(f"{TOPICS}InvalidMagicNumberRecordsPerSec,topic=small") == 1
    assert seen.get(f"{TOPICS}MessagesInPerSec,topic=small") == 0


def test_a_fetch_that_waits_and_expires(secure: SecureBroker, plain: Client, seen: Meter) -> None:
    expired = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
    create(plain, "empty")
    before = seen.get(expired)
    # One that is waited for until it was seen, and one that expires.
    with Client(secure) as patient:
        patient.send(ApiKey.FETCH, FETCH_VERSION, fetch("empty", 0, wait_ms=600_000))
        for size in ("PurgatorySize", "NumDelayedOperations"):
            name = f"{PURGATORY}{size},delayedOperation=Fetch"
            eventually(lambda name=name: seen.get(name, "Value") == 1, "it is parked")
    eventually(lambda: seen.get(f"{PURGATORY}PurgatorySize,delayedOperation=Fetch", "Value") == 0, "it went")
    assert seen.get(expired) == before
    plain.call(ApiKey.FETCH, FETCH_VERSION, fetch("empty", 0, wait_ms=50))
    assert seen.get(expired) == before + 1
    assert seen.get(f"{PURGATORY}PurgatorySize,delayedOperation=Fetch", "Value") == 0


def test_a_client_that_is_throttled(secure: SecureBroker, seen: Meter) -> None:
    """The pause is long enough for the muted channel to be seen, and its end too."""
    request, quota = m.AlterClientQuotasRequest, [m.AlterClientQuotasRequest.OpData("producer_byte_rate", 80)]
    client = Client(secure, name="slow")
    entry = request.EntryData([request.EntityData("client-id", "slow")], quota)
    assert client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, request([entry])).entries[0].error_code == 0
    answer = client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(TOPIC, batch(value=bytes(1000))))
    assert answer.throttle_time_ms > 1000
    eventually(lambda: seen.get("kafka.server:type=Produce", "queue-size") == 1, "its channel is muted")
    name = f"{REQUESTS}ThrottleTimeMs,request=Produce"
    eventually(lambda: seen.get(name, "Max") == answer.throttle_time_ms, "the pause is counted")
    of_client = "kafka.server:type=Produce,client-id=slow"
    assert seen.get(of_client, "throttle-time") == answer.throttle_time_ms
    eventually(lambda: seen.get("kafka.server:type=Produce", "queue-size") == 0, "the pause is over")
    client.close()


def test_whoever_looks_takes_no_lock_and_writes_no_word(secure: SecureBroker, plain: Client) -> None:
    """While all of the broker stands still nothing changes but by who looks."""
    file = secure.runtime_dir / PUBLIC_NAME
    plain.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(TOPIC, batch()))
    with stopped_role(secure, "mpbroker"):
        before = hashlib.sha256(file.read_bytes()).digest(), file.stat().st_blocks
        looking = Meter(secure)
        now = looking.take()
        assert len(catalogue.beans(looking.take(), now)) > 100
        assert (hashlib.sha256(file.read_bytes()).digest(), file.stat().st_blocks) == before
        maps = Path("/proc/self/maps").read_text().splitlines()
    ours = [line.split()[1] for line in maps if line.endswith(str(file))]
    assert ours
    assert all("w" not in how for how in ours), "the kernel would not even let it"
    mine = str(file.stat().st_ino)
    assert not [line for line in Path("/proc/locks").read_text().splitlines() if mine in line]
