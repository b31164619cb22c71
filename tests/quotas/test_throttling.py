"""What a handler charges its clients, natively and in Python, and what they are told.

The clock is the real one, but all within a first window: the pause for `used` bytes at `bound` per second is
1000 * used / bound less a time between 10 and 11 seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.handlers.requests.throttling import Throttling
from mpbroker.ipc import topology
from mpbroker.ipc.metadata import QuotaImage
from mpbroker.ipc.meters import QuotaKind, QuotaWord
from mpbroker.ipc.slots import SlotKind, ThrottledBy
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import FetchRequest, MetadataRequest, ProduceRequest
from mpbroker.quotas.clients import Clients
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from shm.clock import monotonic_ms
from tests.support.handler_rig import (
    Rig,
    channel_of,
    delta,
    partition_payload,
    request_frame,
    rig,
    topic_image,
)

PRODUCE, FETCH, METADATA = 0, 1, 3
PLAIN = topic_image("plain", 1)
VERSIONS = range(3, 14)
CLIENT, USER = "client-id", "user"


@pytest.fixture(name="ready")
def _ready() -> Iterator[Rig]:
    with rig() as made:
        made.publish(PLAIN)
        yield made


def limit(rig: Rig, entity: list[tuple[str, str | None]], **values: float) -> None:
    rig.bulletin.publish_delta(delta(quotas=[QuotaImage(entity, values)]))
    rig.turn()


def produce_frame(version: int = 9, acks: int = -1, size: int = 1000, client: str = "app") -> bytes:
    batch = bytes(build_batch([NewRecord(value=bytes(size), timestamp=-1)]))
    data = ProduceRequest.PartitionProduceData(0, batch)
    topic = ProduceRequest.TopicProduceData("plain", PLAIN.topic_id, [data])
    return request_frame(PRODUCE, version, ProduceRequest(None, acks, 1000, [topic]), client=client)


def produce(
    rig: Rig,
    frame: bytes,
    version: int = 9,
    *,
    native: bool = True,
    connection: int = 7,
    network_ns: int = 0,
) -> int:
    """The pause that the processor is told; the client is told the same."""
    rig.handler.turn.log_is_up, rig.handler.fenced_logs = native, set() if native else {0}
    rig.processor.send(frame, connection=connection, network_ns=network_ns)
    rig.turn()
    (job,) = rig.log.take()
    answer = rig.log.append(job)
    if job.kind == SlotKind.PRODUCE:
        assert not rig.processor.replies()
        throttle_ms: int = job.throttle_ms
        if job.acks == 0:
            return throttle_ms
    else:
        rig.turn()
        (reply,) = rig.processor.replies()
        throttle_ms = reply.throttle_ms
        if reply.kind == SlotKind.NOOP:
            return throttle_ms
        answer = rig.processor.frame_of(reply)
    assert answer is not None
    _, response = decode_response_frame(PRODUCE, version, answer[4:])
    assert response.throttle_time_ms == throttle_ms
    assert [p.error_code for t in response.responses for p in t.partition_responses] == [0]
    return throttle_ms


def is_pause(throttle_ms: int, used: float, bound: float) -> bool:
    return 1000 * used / bound - 11_000 <= throttle_ms <= 1000 * used / bound - 10_000


def how(rig: Rig) -> tuple[int, int]:
    """Produces that the turn served, and those it handed back."""
    from mpbroker.ipc.counters import Counter

    counters = rig.context.counters
    return counters.get(Counter.COUNT_PRODUCE_FAST), counters.get(Counter.COUNT_PRODUCE_SLOW)


@pytest.mark.parametrize("native", [True, False])
def test_the_descriptor_says_which_quota_it_was(ready: Rig, native: bool) -> None:
    def by() -> ThrottledBy:
        ready.handler.turn.log_is_up, ready.handler.fenced_logs = native, set() if native else {0}
        ready.processor.send(produce_frame())
        ready.turn()
        (job,) = ready.log.take()
        ready.log.append(job)
        if job.kind == SlotKind.PRODUCE:
            return ThrottledBy(job.throttled_by)
        ready.turn()
        (reply,) = ready.processor.replies()
        ready.processor.give_back(reply)
        return ThrottledBy(reply.throttled_by)

    limit(ready, [(CLIENT, "app")], producer_byte_rate=50.0, request_percentage=0.0000001)
    produce(ready, produce_frame(), native=False)
    assert by() is ThrottledBy.THROTTLED_BY_PRODUCE
    limit(ready, [(CLIENT, "app")], producer_byte_rate=1e9, request_percentage=0.0000001)
    produce(ready, produce_frame(), native=False)
    assert by() is ThrottledBy.THROTTLED_BY_REQUEST


def test_nothing_is_looked_up_before_a_first_quota(ready: Rig) -> None:
    assert produce(ready, produce_frame()) == 0
    assert (how(ready), len(ready.handler.turn.clients)) == ((1, 0), 0)
    # Quotas on other things do not count.
    limit(ready, [("ip", None)], connection_creation_rate=1.0)
    limit(ready, [(USER, None)], controller_mutation_rate=1.0)
    assert produce(ready, produce_frame()) == 0
    assert (how(ready), ready.handler.turn.clients.on) == ((2, 0), False)


@pytest.mark.parametrize("version", VERSIONS)
def test_produce_over_quota(ready: Rig, version: int) -> None:
    """The first request of a connection goes the slow way, where it is learnt who that is."""
    bound, frame = 50.0, produce_frame(version)
    limit(ready, [(CLIENT, "app")], producer_byte_rate=bound)
    size = len(frame) - 4
    for number in range(1, 4):
        assert is_pause(produce(ready, frame, version), number * size, bound)
    assert how(ready) == (2, 1)
    assert is_pause(produce(ready, frame, version, native=False), 4 * size, bound)


def test_produce_below_quota(ready: Rig) -> None:
    frame = produce_frame()
    size = len(frame) - 4
    limit(ready, [(CLIENT, "app")], producer_byte_rate=3.5 * size / 10)
    assert [produce(ready, frame) for _ in range(3)] == [0, 0, 0]
    # The window is 10 to 11 seconds: the fifth at the latest is too much.
    assert [produce(ready, frame) > 0 for _ in range(2)][-1]
    assert how(ready) == (4, 1)


@pytest.mark.parametrize("native", [True, False])
def test_acks_of_zero_pause_the_connection_for_bytes_alone(ready: Rig, native: bool) -> None:
    frame = produce_frame(acks=0)
    limit(ready, [(CLIENT, "app")], producer_byte_rate=50.0, request_percentage=0.0000001)
    produce(ready, frame, native=False)
    assert is_pause(produce(ready, frame, native=native), 2 * (len(frame) - 4), 50.0)


@pytest.mark.parametrize("native", [True, False])
def test_time_of_requests_pauses_for_a_window_at_most(ready: Rig, native: bool) -> None:
    limit(ready, [(CLIENT, "app")], request_percentage=0.0000001)
    produce(ready, produce_frame(), native=False)
    assert produce(ready, produce_frame(), native=native) == 1000


def test_the_larger_of_two_pauses_counts(ready: Rig) -> None:
    frame = produce_frame()
    limit(ready, [(CLIENT, "app")], request_percentage=0.0000001, producer_byte_rate=50.0)
    for number in (1, 2):
        assert is_pause(produce(ready, frame), number * (len(frame) - 4), 50.0)
    limit(ready, [(CLIENT, "app")], request_percentage=0.0000001, producer_byte_rate=1e9)
    assert [produce(ready, frame), produce(ready, frame)] == [1000, 1000]


def test_a_quota_that_is_gone(ready: Rig) -> None:
    frame = produce_frame()
    limit(ready, [(CLIENT, "app")], producer_byte_rate=50.0)
    assert produce(ready, frame) > 0
    limit(ready, [(CLIENT, "app")])
    assert [produce(ready, frame), produce(ready, frame)] == [0, 0]
    limit(ready, [(CLIENT, "app")], producer_byte_rate=50.0)
    # What it used while it had no quota was not counted.
    assert is_pause(produce(ready, frame), 2 * (len(frame) - 4), 50.0)


def test_one_budget_for_all_handlers(ready: Rig) -> None:
    """What another handler has recorded counts here, and what is recorded here counts there."""
    frame, bound = produce_frame(), 50.0
    size = len(frame) - 4
    other_index = topology.handler(1)
    other = Clients(ready.memory.rates(other_index), ready.memory.meters(other_index))
    limit(ready, [(USER, None)], producer_byte_rate=bound)
    key = ready.handler.broker.throttling._budget("producer_byte_rate", "ANONYMOUS", "app")
    assert key is not None
    assert is_pause(other.charge(QuotaKind.QUOTA_PRODUCE, key[0], bound, 700, monotonic_ms()), 700, bound)
    for number in range(1, 4):
        assert is_pause(produce(ready, frame), 700 + number * size, bound)
    assert is_pause(
        other.charge(QuotaKind.QUOTA_PRODUCE, key[0], bound, 1, monotonic_ms()), 701 + 3 * size, bound
    )
    # A handler that takes the place of this one goes on with what it has recorded.
    heir = Clients(ready.memory.rates(ready.context.index), ready.memory.meters(ready.context.index))
    assert is_pause(
        heir.charge(QuotaKind.QUOTA_PRODUCE, key[0], bound, 1, monotonic_ms()), 702 + 3 * size, bound
    )


def test_who_shares_a_budget(ready: Rig) -> None:
    frame, bound = produce_frame(client="one"), 50.0
    size = len(frame) - 4
    limit(ready, [(USER, None)], producer_byte_rate=bound)
    assert is_pause(produce(ready, frame, connection=7), size, bound)
    # Another client id of the same user, on another connection.
    assert is_pause(produce(ready, produce_frame(client="two"), connection=8), 2 * size, bound)
    # Another user.
    ready.processor.open_session(9)
    ready.processor.sessions.set(channel_of(9), 9, principal="User:alice")
    assert is_pause(produce(ready, frame, connection=9), size, bound)
    assert is_pause(produce(ready, frame, connection=9), 2 * size, bound)


def test_a_connection_that_becomes_somebody_else(ready: Rig) -> None:
    """Another client id, or another principal after it authenticated anew, is not charged to the first."""
    bound = 50.0
    limit(ready, [(CLIENT, None), (USER, None)], producer_byte_rate=bound)
    size = len(produce_frame(client="one")) - 4
    for _ in range(3):
        produce(ready, produce_frame(client="one"))
    assert is_pause(produce(ready, produce_frame(client="two")), size, bound)
    ready.processor.sessions.set(channel_of(7), 7, principal="User:alice")
    assert is_pause(produce(ready, produce_frame(client="one")), size, bound)
    assert is_pause(produce(ready, produce_frame(client="one")), 2 * size, bound)


def test_other_apis_are_charged_for_time(ready: Rig) -> None:
    limit(ready, [(CLIENT, "test")], request_percentage=0.0000001, producer_byte_rate=1.0)
    ready.send(METADATA, 12, MetadataRequest(topics=None))
    (reply,) = ready.processor.replies()
    _, response = decode_response_frame(METADATA, 12, ready.processor.frame_of(reply)[4:])
    assert (reply.throttle_ms, response.throttle_time_ms) == (1000, 1000)
    assert response.brokers
    limit(ready, [(CLIENT, "test")], request_percentage=1e9)
    assert ready.ask(METADATA, 12, MetadataRequest(topics=None)).throttle_time_ms == 0


# ---- fetch


def fetch_request(max_bytes: int = 1 << 20, min_bytes: int = 0) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic("plain", PLAIN.topic_id, [wanted])
    return FetchRequest(max_wait_ms=0, min_bytes=min_bytes, max_bytes=max_bytes, topics=[topic])


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_a_fetch_over_quota_is_empty_and_not_charged(ready: Rig, version: int) -> None:
    ready.table.write(0, partition_payload(PLAIN))
    response = ready.ask(FETCH, version, fetch_request())
    assert (response.throttle_time_ms, len(response.responses)) == (0, 1)
    ready.send(FETCH, version, fetch_request())
    (reply,) = ready.processor.replies()
    size = reply.length - 4 - (version >= 12)
    ready.processor.give_back(reply)

    # Below its size in any window: every answer is too much, and none is counted.
    bound = size / 20
    limit(ready, [(CLIENT, "test")], consumer_byte_rate=bound)
    for _ in range(3):
        ready.send(FETCH, version, fetch_request())
        (reply,) = ready.processor.replies()
        _, response = decode_response_frame(FETCH, version, ready.processor.frame_of(reply)[4:])
        assert is_pause(reply.throttle_ms, size, bound)
        assert response.throttle_time_ms == reply.throttle_ms
        assert (response.error_code, response.session_id, response.responses) == (0, 0, [])

    limit(ready, [(CLIENT, "test")], consumer_byte_rate=size * 0.25)
    asked = [ready.ask(FETCH, version, fetch_request()) for _ in range(4)]
    assert [len(response.responses) for response in asked[:2]] == [1, 1]
    assert asked[3].responses == []


def test_a_fetch_that_costs_too_much_time_is_empty_too(ready: Rig) -> None:
    limit(ready, [(CLIENT, "test")], request_percentage=0.0000001, consumer_byte_rate=1e9)
    response = ready.ask(FETCH, 12, fetch_request())
    assert (response.throttle_time_ms, response.responses) == (1000, [])


def test_a_fetch_asks_for_no_more_than_its_quota_could_let_through(ready: Rig) -> None:
    limit(ready, [(CLIENT, "test")], consumer_byte_rate=100)
    seen: list[tuple[int, int]] = []
    from mpbroker.handlers.apis.k01_fetch import Fetch

    real = Fetch.find_slots

    def find_slots(self: Any) -> Any:
        seen.append((self.limit, self.min_bytes))
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fetch, "find_slots", find_slots)
        ready.ask(FETCH, 12, fetch_request(max_bytes=5000, min_bytes=4000))
        ready.ask(FETCH, 12, fetch_request(max_bytes=500, min_bytes=400))
    assert seen == [(1000, 1000), (500, 400)]


def test_keys_are_secret_and_per_kind(ready: Rig) -> None:
    quotas = ready.handler.broker.throttling
    limit(ready, [(USER, None)], producer_byte_rate=1.0, consumer_byte_rate=1.0)
    one = quotas._budget("producer_byte_rate", "alice", "app")
    two = quotas._budget("consumer_byte_rate", "alice", "app")
    other = Throttling(
        ready.context.config,
        ready.metadata,
        ready.handler.turn.clients,
        ready.handler.turn.meters,
        bytes(16),
    )
    elsewhere = other._budget("producer_byte_rate", "alice", "app")
    assert one is not None
    assert two is not None
    assert elsewhere is not None
    assert len({one[0], two[0], elsewhere[0]}) == 3


def quotas_of(rig: Rig) -> tuple[list[list[int]], dict[tuple[int, str, str], list[int]]]:
    """All clients together, and each one, as a reader sees them."""
    alls, clients = topology.meter_reader(rig.memory.public).quotas(rig.context.index)
    return alls, {(words[QuotaWord.QUOTA_OF], user, client_id): words for user, client_id, words in clients}


@pytest.mark.parametrize("native", [True, False])
def test_what_a_client_used_and_how_it_paused_is_counted(ready: Rig, native: bool) -> None:
    frame = produce_frame()
    size = len(frame) - 4
    limit(ready, [(CLIENT, "app")], producer_byte_rate=50.0, request_percentage=100.0)
    pauses = [produce(ready, frame, native=native) for _ in range(4)]
    assert how(ready) == ((3, 1) if native else (0, 4))
    alls, clients = quotas_of(ready)
    for row in (alls[QuotaKind.QUOTA_PRODUCE], clients[QuotaKind.QUOTA_PRODUCE, "", "app"]):
        assert row[QuotaWord.QUOTA_USED] == 4 * size
        assert row[QuotaWord.QUOTA_PAUSES] == 4
        assert row[QuotaWord.QUOTA_PAUSES_MS] == sum(pauses)
    spent = clients[QuotaKind.QUOTA_REQUEST, "", "app"]
    assert spent[QuotaWord.QUOTA_USED] == alls[QuotaKind.QUOTA_REQUEST][QuotaWord.QUOTA_USED] > 0
    assert spent[QuotaWord.QUOTA_PAUSES] == 0
    assert alls[QuotaKind.QUOTA_REQUEST][QuotaWord.QUOTA_EXEMPT] == 0
    produce(ready, produce_frame(acks=0), native=native)
    after, clients = quotas_of(ready)
    assert after[QuotaKind.QUOTA_REQUEST][QuotaWord.QUOTA_EXEMPT] > 0, "time without acks is exempt"
    assert clients[QuotaKind.QUOTA_REQUEST, "", "app"] == spent


def test_a_fetch_that_is_held_back_has_used_nothing(ready: Rig) -> None:
    limit(ready, [(CLIENT, "client")], consumer_byte_rate=0.001)
    ready.processor.send(request_frame(FETCH, 12, fetch_request(), client="client"))
    ready.turn()
    row = quotas_of(ready)[1][QuotaKind.QUOTA_FETCH, "", "client"]
    assert row[QuotaWord.QUOTA_USED] == 0
    assert row[QuotaWord.QUOTA_PAUSES] == 1


def test_clients_without_a_meter_are_counted(ready: Rig) -> None:
    """Check with a client whose two groups are full of sixteen busy ones: it is not limited, but counted."""
    clients = ready.handler.turn.clients
    # Their groups are the first one of the page and the sixth.
    keys = [number << 16 | 5 << 32 for number in range(17)]
    kind, now_ms = QuotaKind.QUOTA_PRODUCE, monotonic_ms()
    for key in keys[:16]:
        clients.charge(kind, key, 1.0, 100, now_ms)
    assert quotas_of(ready)[0][kind][QuotaWord.QUOTA_UNMEASURED] == clients.unmeasured == 0
    assert clients.charge(kind, keys[15], 1.0, 1 << 30, now_ms) > 0
    assert clients.charge(kind, keys[16], 1.0, 1 << 30, now_ms) == 0, "it is let through"
    assert quotas_of(ready)[0][kind][QuotaWord.QUOTA_UNMEASURED] == clients.unmeasured == 1


@pytest.mark.parametrize("native", [True, False])
def test_the_processors_time_counts(ready: Rig, native: bool) -> None:
    """Beside the handler's: a second is a pause of a second at 5 %, which allows 550 ms in eleven windows."""
    frame, spent_ns = produce_frame(), 1_000_000_000
    begun_ns = time.monotonic_ns()
    limit(ready, [(CLIENT, "app")], request_percentage=1e9)
    produce(ready, frame, native=False)
    limit(ready, [(CLIENT, "app")], request_percentage=5.0)
    assert produce(ready, frame, native=False) == 0
    assert produce(ready, frame, native=native, network_ns=spent_ns) == 1000
    handlers_ns = time.monotonic_ns() - begun_ns
    used = quotas_of(ready)[1][QuotaKind.QUOTA_REQUEST, "", "app"][QuotaWord.QUOTA_USED]
    assert spent_ns - (1 << 14) < used < spent_ns + handlers_ns
    # Without acks it is exempt, as the handler's time is.
    produce(ready, produce_frame(acks=0), native=native, network_ns=spent_ns)
    alls, clients = quotas_of(ready)
    assert clients[QuotaKind.QUOTA_REQUEST, "", "app"][QuotaWord.QUOTA_USED] == used
    assert alls[QuotaKind.QUOTA_REQUEST][QuotaWord.QUOTA_EXEMPT] > spent_ns - (1 << 14)


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [(METADATA, 12, MetadataRequest(topics=None)), (FETCH, 12, fetch_request())],
)
def test_the_processors_time_counts_for_every_api(
    ready: Rig, api_key: int, version: int, body: MetadataRequest | FetchRequest
) -> None:
    limit(ready, [(CLIENT, "test")], request_percentage=1.0)
    told = []
    for network_ns in (0, 200_000_000):
        ready.send(api_key, version, body, network_ns=network_ns)
        (reply,) = ready.processor.replies()
        told.append(reply.throttle_ms)
        ready.processor.give_back(reply)
    assert told == [0, 1000]
    assert reply.throttled_by == ThrottledBy.THROTTLED_BY_REQUEST
