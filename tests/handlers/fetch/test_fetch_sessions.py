"""Fetch sessions: Kafka's rules, by hand and by a client that keeps one whatever happens to it."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mpbroker.handlers.fetch.fetch_sessions import MIN_EVICTION_MS, FetchSessionCache
from mpbroker.handlers.hot_path.session_table import FetchSession, SessionTable, handler_of
from mpbroker.handlers.process import Handler
from mpbroker.ipc import settings as settings_block
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotFlag, SlotKind
from mpbroker.protocol.messages import FetchRequest, FetchResponse
from tests.support.fetch_logs import FETCH, PARTITIONS, TOPIC, Client, Logs, decoded, logs, topics_of, wanted
from tests.support.forms import rounds
from tests.support.handler_logs import learn
from tests.support.handler_rig import (
    base,
    delta,
    order_settings,
    request_frame,
    shared_memory,
    topic_id,
    topic_image,
)

BY_NAME, BY_ID = 12, 18
INT_MAX = (1 << 31) - 1


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Iterator[Logs]:
    with logs(tmp_path) as found:
        yield found


def ask(made: Logs, request: FetchRequest, version: int = BY_ID, **send: Any) -> FetchResponse:
    return decoded(version, made.ask(version, request, **send))


def begin(made: Logs, partitions: int = 2, version: int = BY_ID) -> int:
    """A session of the first partitions, from their beginning."""
    request = FetchRequest(session_epoch=0, topics=topics_of([wanted(n, 0) for n in range(partitions)]))
    response = ask(made, request, version)
    assert response.error_code == 0
    assert len(response.responses[0].partitions) == partitions
    return response.session_id


def go_on(session: int, epoch: int, *changed: FetchRequest.FetchPartition, **fields: Any) -> FetchRequest:
    return FetchRequest(session_id=session, session_epoch=epoch, topics=topics_of(changed), **fields)


def told(response: FetchResponse) -> dict[int, FetchResponse.PartitionData]:
    assert response.error_code == 0
    return {answer.partition_index: answer for topic in response.responses for answer in topic.partitions}


def cache_of(made: Logs) -> FetchSessionCache:
    return made.rig.handler.broker.fetch_sessions


def count(made: Logs, counter: Counter) -> int:
    return made.rig.context.counters.get(counter)


@pytest.mark.parametrize("version", [7, BY_NAME, BY_ID])
def test_a_session_tells_only_news(made: Logs, version: int) -> None:
    session = begin(made, 3, version)
    assert session > 0
    assert handler_of(session) == 0
    assert told(ask(made, go_on(session, 1), version)) == {}
    made.partitions[1].append()
    (answer,) = told(ask(made, go_on(session, 2), version)).values()
    assert (answer.partition_index, answer.high_watermark, len(bytes(answer.records or b"")) > 0) == (
        1,
        2,
        True,
    )
    response = ask(made, go_on(session, 3, wanted(1, 2)), version)
    assert (told(response), response.session_id) == ({}, session)
    made.partitions[2].publish(log_start_offset=0, high_watermark=0)
    made.partitions[1].publish(log_start_offset=1)
    assert told(ask(made, go_on(session, 4), version))[1].log_start_offset == 1
    assert told(ask(made, go_on(session, 5), version)) == {}


@pytest.mark.parametrize("version", [4, 6])
def test_there_are_no_sessions_before_version_7(made: Logs, version: int) -> None:
    request = FetchRequest(topics=topics_of([wanted(0, 0)]))
    assert told(ask(made, request, version)).keys() == {0}
    assert len(cache_of(made)) == 0


def test_epochs(made: Logs) -> None:
    session = begin(made)
    for epoch in (2, 3, INT_MAX, -2):
        response = ask(made, go_on(session, epoch))
        assert (response.error_code, response.session_id, response.responses) == (71, 0, [])
    assert ask(made, go_on(session, 1)).error_code == 0
    assert ask(made, go_on(session, 1)).error_code == 71
    assert ask(made, go_on(session, 2)).error_code == 0
    assert ask(made, go_on(session + 1, 3)).error_code == 70


@pytest.mark.parametrize("native", [False, True])
def test_behind_the_largest_epoch_comes_one(made: Logs, native: bool) -> None:
    session = begin(made)
    made.rig.handler.turn.fetch_is_fast = native
    found = cache_of(made).get(session)
    assert found is not None
    found.epoch = INT_MAX
    assert ask(made, go_on(session, INT_MAX)).error_code == 0
    assert ask(made, go_on(session, 1)).error_code == 0


def test_a_full_fetch_closes_the_session_that_it_names(made: Logs) -> None:
    first = begin(made)
    request = FetchRequest(session_id=first, session_epoch=0, topics=topics_of([wanted(0, 0)]))
    second = ask(made, request).session_id
    assert second not in (0, first)
    assert ask(made, go_on(first, 1)).error_code == 70
    request.session_id, request.session_epoch = second, -1
    response = ask(made, request)
    assert (response.session_id, told(response).keys()) == (0, {0})
    assert ask(made, go_on(second, 1)).error_code == 70
    assert len(cache_of(made)) == 0
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 0


def test_partitions_are_forgotten_added_and_changed(made: Logs) -> None:
    session = begin(made, 2)
    for log in made.partitions:
        log.append()
    gone = [FetchRequest.ForgottenTopic("", TOPIC.topic_id, [0, 3])]
    response = ask(made, go_on(session, 1, wanted(2, 2), forgotten_topics_data=gone))
    assert told(response).keys() == {1, 2}
    assert count(made, Counter.COUNT_FETCH_SESSION_PARTITIONS) == 2
    assert told(ask(made, go_on(session, 2, wanted(0, 1), wanted(1, 2)))).keys() == {0}
    assert count(made, Counter.COUNT_FETCH_SESSION_PARTITIONS) == 3


def test_a_session_without_partitions_ends(made: Logs) -> None:
    session = begin(made, 1)
    gone = [FetchRequest.ForgottenTopic("", TOPIC.topic_id, [0])]
    response = ask(made, go_on(session, 1, forgotten_topics_data=gone))
    assert (response.error_code, response.session_id, response.responses) == (0, 0, [])
    assert ask(made, go_on(session, 2)).error_code == 70
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 0


def test_a_session_has_no_more_partitions_than_the_broker(made: Logs) -> None:
    most = made.rig.context.memory.sizes.partition_slots
    beyond = FetchRequest(session_epoch=0, topics=topics_of([wanted(n, 0) for n in range(most + 1)]))
    response = ask(made, beyond)
    assert (response.session_id, len(told(response))) == (0, most + 1)
    session = begin(made, most)
    assert session > 0
    response = ask(made, go_on(session, 1, wanted(most, 0), wanted(0, 0)))
    assert (response.session_id, told(response).keys()) == (0, {most, 0})
    assert ask(made, go_on(session, 2)).error_code == 70
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 0


def test_names_and_ids_are_not_mixed(made: Logs) -> None:
    by_id, by_name = begin(made), begin(made, version=BY_NAME)
    assert ask(made, go_on(by_id, 1), BY_NAME).error_code == 106
    assert ask(made, go_on(by_name, 1), BY_ID).error_code == 106
    # The session is as it was.
    assert ask(made, go_on(by_id, 1), BY_ID).error_code == 0


def test_errors_are_told_each_time_and_so_is_their_end(made: Logs) -> None:
    session = begin(made, 1)
    made.partitions[0].publish(log_start_offset=1, log_end_offset=1, high_watermark=1)
    for epoch in (1, 2):
        assert told(ask(made, go_on(session, epoch)))[0].error_code == 1
    made.partitions[0].publish()
    assert told(ask(made, go_on(session, 3)))[0].error_code == 0
    assert told(ask(made, go_on(session, 4))) == {}


def test_who_got_records_comes_last(made: Logs) -> None:
    """Check that a limit of one batch at a time serves all partitions in turn."""
    sizes = [log.append() for log in made.partitions]
    session = begin(made, 1)
    request = go_on(session, 1, *(wanted(n, 0) for n in range(PARTITIONS)), max_bytes=sizes[0])
    assert [n for n, a in told(ask(made, request)).items() if a.records] == [0]
    seen = []
    for epoch in range(2, 8):
        response = ask(made, go_on(session, epoch, max_bytes=sizes[0]))
        seen += [n for n, answer in told(response).items() if answer.records]
    assert seen == [1, 2, 3, 0, 1, 2]


def test_a_topic_that_is_gone(made: Logs) -> None:
    session = begin(made, 1)
    made.rig.bulletin.publish_delta(delta(removed=(TOPIC.topic_id,)))
    made.rig.turn()
    assert told(ask(made, go_on(session, 1)))[0].error_code == 3
    another = topic_image("logged", 2, partitions=PARTITIONS, first_slot=8)
    made.rig.bulletin.publish_delta(delta(another, version=3))
    made.rig.turn()
    assert told(ask(made, go_on(session, 2)))[0].error_code == 103
    unknown = FetchRequest.FetchTopic("", topic_id(9), [wanted(0, 0)])
    request = go_on(session, 3)
    request.topics = [unknown]
    codes = [t.partitions[0].error_code for t in ask(made, request).responses]
    assert codes == [103, 100]


def test_an_unknown_topic_does_not_hurry_the_others(made: Logs) -> None:
    """Check that the fetch waits: otherwise its client would ask as fast as it can."""
    request = FetchRequest(session_epoch=0, min_bytes=1, max_wait_ms=60_000)
    request.topics = [
        FetchRequest.FetchTopic("", topic_id(9), [wanted(0, 0)]),
        *topics_of([wanted(0, 0), wanted(77, 0)]),
    ]
    made.rig.send(FETCH, BY_ID, request)
    assert [r.kind for r in made.rig.processor.replies()] == [SlotKind.PARKED]
    made.partitions[0].append()
    made.rig.turn()
    (reply,) = made.rig.processor.replies()
    answers = [a for t in decoded(BY_ID, made.frame(reply)).responses for a in t.partitions]
    assert [a.error_code for a in answers] == [100, 0, 3]
    # Alone it is told at once.
    request.topics = request.topics[:1]
    assert ask(made, request).responses[0].partitions[0].error_code == 100


def test_a_parked_fetch_that_is_overtaken(made: Logs) -> None:
    session = begin(made)
    waits = go_on(session, 1, min_bytes=1, max_wait_ms=60_000)
    made.rig.send(FETCH, BY_ID, waits, connection=8)
    assert [r.kind for r in made.rig.processor.replies()] == [SlotKind.PARKED]
    assert ask(made, go_on(session, 2)).error_code == 0
    made.partitions[0].append()
    made.rig.turn()
    (reply,) = made.rig.processor.replies()
    response = decoded(BY_ID, made.frame(reply))
    assert (response.error_code, response.session_id, response.responses) == (71, session, [])


@pytest.mark.parametrize("native", [False, True])
def test_an_answer_that_could_not_be_sent_is_told_anew(made: Logs, native: bool) -> None:
    session = begin(made)
    made.rig.handler.turn.fetch_is_fast = native
    made.partitions[0].append()
    made.partitions[1].publish(log_start_offset=0, high_watermark=0)
    request = go_on(session, 1)
    first = told(ask(made, request))
    again = told(ask(made, request, flags=SlotFlag.AGAIN))
    assert bytes(again[0].records or b"") == bytes(first[0].records or b"") != b""
    # More than before may be told, never less.
    assert first.keys() <= again.keys()
    assert ask(made, go_on(session, 2)).error_code == 0
    assert ask(made, go_on(session, 2), flags=SlotFlag.AGAIN).error_code == 0
    assert ask(made, go_on(session, 1), flags=SlotFlag.AGAIN).error_code == 71


def test_a_full_fetch_that_comes_again_makes_no_second_session(made: Logs) -> None:
    made.partitions[0].append()
    other = begin(made)
    request = FetchRequest(session_epoch=0, topics=topics_of([wanted(0, 0)]))
    lost = ask(made, request, connection=8).session_id
    session = ask(made, request, connection=8, flags=SlotFlag.AGAIN).session_id
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 2
    assert ask(made, go_on(lost, 1), connection=8).error_code == 70
    assert [ask(made, go_on(one, 1)).error_code for one in (session, other)] == [0, 0]


def test_no_cache_no_sessions(tmp_path: Path) -> None:
    with logs(tmp_path, max_incremental_fetch_session_cache_slots=0) as made:
        assert begin(made) == 0
        made.partitions[0].append()
        assert begin(made) == 0
        before = count(made, Counter.COUNT_FETCHES_FAST)
        assert begin(made) == 0
        assert count(made, Counter.COUNT_FETCHES_FAST) == before + 1


def test_how_many_sessions_there_may_be_follows_a_reload(made: Logs) -> None:
    session = begin(made)
    assert session > 0
    block = made.rig.memory.private.block("settings")
    for slots, may_begin in ((0, False), (1000, True)):
        now = structs.replace(made.rig.context.config, max_incremental_fetch_session_cache_slots=slots)
        settings_block.write(block, settings_block.encode(now))
        order_settings(made.rig)
        assert (begin(made) > 0) == may_begin
    assert ask(made, go_on(session, 1)).error_code == 0, "who has one keeps it"


def test_a_successor_knows_no_session(made: Logs) -> None:
    session = begin(made)
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 1
    made.rig.handler = Handler(made.rig.context)
    assert count(made, Counter.COUNT_FETCH_SESSIONS) == 0
    assert ask(made, go_on(session, 1)).error_code == 70


# ---- the turn ----


def same(made: Logs, sessions: tuple[int, int], epoch: int, **fields: Any) -> bool:
    """Return True if the turn answered.

    Asks it with one session, and the slow path with the other one.
    """
    frames = []
    for native, session in zip((False, True), sessions, strict=True):
        made.rig.handler.turn.fetch_is_fast = native
        before = count(made, Counter.COUNT_FETCHES_FAST)
        frame = made.ask(BY_ID, request_of(session, epoch, fields))
        answered = count(made, Counter.COUNT_FETCHES_FAST) > before
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        # size, correlation, tags, throttle_time_ms, error_code
        assert struct.unpack_from(">i", frame, 15)[0] == session
        frames.append(frame[:15] + frame[19:])
    assert frames[0] == frames[1]
    first, second = (cache_of(made).get(session) for session in sessions)
    assert first is not None
    assert second is not None
    assert list(first) == list(second)
    assert [vars_of(first, key) for key in first] == [vars_of(second, key) for key in second]
    assert first.epoch == second.epoch
    return answered


def request_of(session: int, epoch: int, fields: dict[str, Any]) -> FetchRequest:
    rest = {name: value for name, value in fields.items() if name != "changed"}
    return go_on(session, epoch, *fields.get("changed", ()), **rest)


def vars_of(session: FetchSession, key: Any) -> Any:
    found = session.wanted(key)
    return found.partition, found.fetch_offset, found.partition_max_bytes, found.current_leader_epoch


def learned(made: Logs) -> None:
    for number, log in enumerate(made.partitions):
        learn(made.rig.handler.turn.fetch_positions, number, log.path)


def test_the_turn_answers_what_is_common(made: Logs) -> None:
    sizes = [log.append() for log in made.partitions]
    learned(made)
    both = begin(made, 3), begin(made, 3)
    assert same(made, both, 1)
    assert same(made, both, 2, changed=[wanted(1, 1), wanted(0, 2)], max_bytes=sizes[0])
    assert same(made, both, 3, changed=[wanted(n, 2) for n in range(3)])
    made.partitions[1].append()
    assert same(made, both, 4, min_bytes=1, max_wait_ms=1000)
    made.partitions[0].publish(log_start_offset=1)
    assert same(made, both, 5)
    assert count(made, Counter.COUNT_FETCHES_INCREMENTAL) == 10


def test_what_is_not_common_is_left_to_the_slow_path(made: Logs) -> None:
    for log in made.partitions:
        log.append()
    learned(made)
    both = begin(made, 2), begin(made, 2)
    assert not same(made, both, 1, changed=[wanted(2, 0)])
    assert not same(
        made, both, 2, forgotten_topics_data=[FetchRequest.ForgottenTopic("", TOPIC.topic_id, [2])]
    )
    assert not same(made, both, 3, changed=[wanted(0, 0, current_leader_epoch=4)])
    assert not same(made, both, 4, changed=[wanted(0, 9, current_leader_epoch=-1)])
    assert same(made, both, 5, changed=[wanted(0, 0)])


@settings(max_examples=rounds(60), deadline=None)
@given(data=st.data())
def test_turn_and_slow_path_keep_the_same_session(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory, logs(Path(directory)) as made:
        learned(made)
        offsets = [0] * PARTITIONS
        both = begin(made, 3), begin(made, 3)
        for epoch in range(1, data.draw(st.integers(2, 8))):
            for number in data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=3)):
                made.partitions[number].append()
            changed = []
            for number in data.draw(st.sets(st.integers(0, 2))):
                offsets[number] = data.draw(st.integers(offsets[number], made.partitions[number].end))
                changed.append(wanted(number, offsets[number], data.draw(st.sampled_from([1, 300, 1 << 20]))))
            same(made, both, epoch, changed=changed, max_bytes=data.draw(st.sampled_from([1, 300, 1 << 20])))


@pytest.mark.parametrize("length", range(12))
def test_a_truncated_fetch_changes_no_session(made: Logs, length: int) -> None:
    made.partitions[0].append()
    learned(made)
    session = begin(made)
    frame = request_frame(FETCH, BY_ID, go_on(session, 1, wanted(0, 0)))
    made.rig.processor.send(frame[: len(frame) - 1 - 4 * length])
    made.rig.turn()
    assert [r.kind for r in made.rig.processor.replies()] == [SlotKind.CLOSE]
    assert ask(made, go_on(session, 1)).error_code == 0


@pytest.mark.parametrize("native", [False, True])
def test_null_in_the_place_of_topics_changes_no_session(made: Logs, native: bool) -> None:
    session = begin(made)
    made.rig.handler.turn.fetch_is_fast = native
    frame = bytearray(request_frame(FETCH, BY_ID, go_on(session, 1)))
    # Behind the header and what goes before the topics.
    assert frame[19 + 21] == 1
    frame[19 + 21] = 0
    made.rig.processor.send(bytes(frame))
    made.rig.turn()
    assert [r.kind for r in made.rig.processor.replies()] == [SlotKind.CLOSE]
    assert ask(made, go_on(session, 1)).error_code == 0


# ---- the cache ----


class Cache:
    def __init__(self, counters: Any, slots: int) -> None:
        self.now_ms = 0
        self.counters = counters
        self.cache = FetchSessionCache(slots, 3, SessionTable(), counters, lambda: self.now_ms, 4096)

    def make(self, size: int = 1, *, privileged: bool = False) -> FetchSession:
        session = self.cache.maybe_create(privileged=privileged, by_id=True, size=size)
        assert session is not None, "the cache is full"
        for number in range(size):
            session.put((TOPIC.topic_id, number), wanted(number, 0))
        self.cache.resized(session)
        return session

    def refuses(self, size: int = 1) -> bool:
        return self.cache.maybe_create(privileged=False, by_id=True, size=size) is None

    def evicted(self) -> int:
        return int(self.counters.get(Counter.COUNT_FETCH_SESSIONS_EVICTED))

    def has(self, session: FetchSession) -> bool:
        return self.cache.get(session.id) is session


@pytest.fixture(name="counters")
def _counters() -> Iterator[Any]:
    with shared_memory() as memory:
        yield memory.counters(0)


def test_who_was_long_not_used_makes_room(counters: Any) -> None:
    made = Cache(counters, 2)
    first, second = made.make(5), made.make(1)
    assert made.refuses(9)
    made.now_ms = MIN_EVICTION_MS
    second.use(made.now_ms)
    assert made.refuses()
    made.now_ms += 1
    made.make()
    assert (made.has(first), made.has(second), made.evicted()) == (False, True, 1)


def test_more_partitions_are_worth_more(counters: Any) -> None:
    made = Cache(counters, 2)
    small, large = made.make(2), made.make(4)
    made.now_ms = MIN_EVICTION_MS + 1
    for session in (small, large):
        session.use(made.now_ms)
    assert made.refuses(2)
    made.make(3)
    assert (made.has(small), made.has(large)) == (False, True)
    # The new one is young.
    assert made.refuses(4)
    made.make(5)
    assert not made.has(large)


def test_followers_are_worth_more_than_consumers(counters: Any) -> None:
    made = Cache(counters, 2)
    consumer, follower = made.make(9), made.make(1, privileged=True)
    # A young consumer's makes room for a follower's, and no follower's for a consumer's.
    another = made.make(1, privileged=True)
    assert (made.has(consumer), made.has(follower), made.has(another)) == (False, True, True)
    made.now_ms = MIN_EVICTION_MS + 1
    for session in (follower, another):
        session.use(made.now_ms)
    assert made.refuses(100)
    made.make(2, privileged=True)


def test_a_cache_that_is_made_smaller_takes_nothing_away(counters: Any) -> None:
    made = Cache(counters, 3)
    sessions = [made.make() for _ in range(3)]
    made.cache.resize(1)
    assert all(made.has(session) for session in sessions)
    assert made.refuses()
    for session in sessions[:2]:
        made.cache.remove(session.id)
    assert made.refuses()
    made.cache.resize(2)
    made.make()


def test_ids_name_their_handler(counters: Any) -> None:
    made = Cache(counters, 3000)
    found = [made.make(0) for _ in range(2500)]
    ids = {session.id for session in found}
    assert len(ids) == 2500
    assert {handler_of(session_id) for session_id in ids} == {3}
    # More than the turn can find are served nevertheless.
    assert counters.get(Counter.COUNT_FETCH_SESSIONS) == 2500
    for session_id in ids:
        made.cache.remove(session_id)
    assert counters.get(Counter.COUNT_FETCH_SESSIONS) == 0


# ---- a client ----


class World:
    """A client and the handlers that it may meet; the test chooses what happens."""

    def __init__(self, made: Logs, version: int) -> None:
        self.made = made
        self.client = Client(version)
        self.version = version

    def fetch(
        self, partitions: list[int], *, native: bool, max_bytes: int, lost: bool = False, again: bool = False
    ) -> int:
        self.made.rig.handler.turn.fetch_is_fast = native
        request = self.client.request(partitions, max_bytes)
        frame = self.made.ask(self.version, request)
        if again:
            frame = self.made.ask(self.version, request, flags=SlotFlag.AGAIN)
        if lost:
            self.client.disconnected()
            return 0
        return self.client.take(decoded(self.version, frame))

    def another_handler(self) -> None:
        """The one that kept the session has died, or another one got the fetch."""
        self.made.rig.handler = Handler(self.made.rig.context)
        self.made.rig.bulletin.publish_base(base(TOPIC))
        self.made.rig.turn()

    def drain(self) -> None:
        """Fetch until each partition had its turn: a limit of one batch must not starve any."""
        left = sum(log.end - self.client.positions[n] for n, log in enumerate(self.made.partitions))
        # The first ones may end in an error, and each other brings at least one batch of two records.
        for _ in range(4 + left // 2):
            self.fetch(list(range(PARTITIONS)), native=True, max_bytes=1)
        assert list(self.client.positions.values()) == [log.end for log in self.made.partitions]


ACTIONS = st.sampled_from(["append", "append", "fetch", "fetch", "fetch", "lost", "again", "evict", "die"])


@settings(max_examples=rounds(80), deadline=None)
@given(data=st.data(), version=st.sampled_from([7, BY_NAME, BY_ID]))
def test_a_client_reads_everything_once(data: st.DataObject, version: int) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        with logs(directory) as made:
            world = World(made, version)
            for action in data.draw(st.lists(ACTIONS, max_size=25)):
                if action == "append":
                    made.partitions[data.draw(st.integers(0, PARTITIONS - 1))].append()
                elif action == "evict":
                    cache_of(made).remove(world.client.session)
                elif action == "die":
                    world.another_handler()
                else:
                    world.fetch(
                        sorted(data.draw(st.sets(st.integers(0, PARTITIONS - 1)))),
                        native=data.draw(st.booleans()),
                        max_bytes=data.draw(st.sampled_from([1, 400, 1 << 20])),
                        lost=action == "lost",
                        again=action == "again",
                    )
            world.drain()
    finally:
        shutil.rmtree(directory)
