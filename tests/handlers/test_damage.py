"""Ranges that the scrubber has found damaged: refused, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.table import word_of
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.damage import Damage, FileIdentity, Scrubbed, write_scrubbed
from mpbroker.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from tests.support.fetch_logs import T0, Logs, decoded, logs, topics_of, wanted

VERSION = 13
RECORDS = 2
BATCHES = 10
# As tests.support.handler_rig makes partitions.
GENERATION = 5


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Logs]:
    with logs(tmp_path) as made:
        for partition in made.partitions[:2]:
            for _ in range(BATCHES):
                partition.append(RECORDS)
        yield made


def bytes_each(log: Logs) -> int:
    return log.partitions[0].position // BATCHES


def overwrite(log: Logs, first: int, behind: int) -> None:
    """Fill batches [first, behind) of partition 0 with zeros."""
    path, each = log.partitions[0].path, bytes_each(log)
    data = bytearray(path.read_bytes())
    data[first * each : behind * each] = bytes((behind - first) * each)
    path.write_bytes(data)


def damage(log: Logs, first: int, behind: int, *, version: int = 1) -> None:
    """Overwrite batches of partition 0, as the scrubber has reported."""
    overwrite(log, first, behind)
    path, each = log.partitions[0].path, bytes_each(log)
    places = (first * each, behind * each, first * RECORDS, behind * RECORDS)
    one = Damage("logged-0", 0, *places, "zeros", FileIdentity.of(path.stat()), 0)
    write_scrubbed(path.parent.parent, Scrubbed([one]))
    log.rig.memory.words("damaged").store(0, word_of(GENERATION, version))


def ask(log: Logs, offset: int, partition: int = 0) -> FetchResponse.PartitionData:
    request = FetchRequest(max_bytes=1 << 20, topics=topics_of([wanted(partition, offset)]))
    (topic,) = decoded(VERSION, log.ask(VERSION, request)).responses
    return topic.partitions[0]


def offsets(answer: FetchResponse.PartitionData) -> list[int]:
    return [record.offset for batch in iterate_batches(answer.records or b"") for record in batch.records()]


def test_only_the_range_is_refused(log: Logs) -> None:
    assert offsets(ask(log, 0)) == list(range(20))
    damage(log, 3, 5)
    for offset in range(20):
        answer = ask(log, offset)
        if 6 <= offset < 10:
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
            assert not answer.records
        else:
            first = offset - offset % RECORDS
            assert answer.error_code == 0
            assert offsets(answer) == list(range(first, 6 if offset < 6 else 20))
    assert offsets(ask(log, 0, 1)) == list(range(20))


@pytest.mark.parametrize(("first", "behind"), [(0, 1), (9, 10), (0, 10)])
def test_damage_at_either_end(log: Logs, first: int, behind: int) -> None:
    damage(log, first, behind)
    for offset in range(20):
        is_damaged = first * RECORDS <= offset < behind * RECORDS
        assert (ask(log, offset).error_code == ErrorCode.CORRUPT_MESSAGE) == is_damaged
    assert ask(log, 20).error_code == 0


def test_it_is_served_again_when_it_is_whole(log: Logs) -> None:
    path = log.partitions[0].path
    whole = path.read_bytes()
    damage(log, 3, 5)
    assert ask(log, 6).error_code == ErrorCode.CORRUPT_MESSAGE
    path.write_bytes(whole)
    # Another file by now, whatever the word says.
    assert offsets(ask(log, 6)) == list(range(6, 20))
    log.rig.memory.words("damaged").store(0, 0)
    assert offsets(ask(log, 6)) == list(range(6, 20))


def test_new_damages_are_loaded(log: Logs) -> None:
    damage(log, 3, 5)
    assert offsets(ask(log, 0)) == list(range(6))
    damage(log, 2, 5, version=2)
    assert offsets(ask(log, 0)) == list(range(4))


def test_a_word_of_another_generation_is_none(log: Logs) -> None:
    damage(log, 3, 5)
    log.rig.memory.words("damaged").store(0, word_of(2, 1))
    assert len(ask(log, 0).records or b"") == log.partitions[0].position


def test_without_damage_the_turn_answers(log: Logs) -> None:
    counters = log.rig.handler.context.counters
    damage(log, 3, 5)
    for partition in (0, 1):
        ask(log, 0, partition)
    before = counters.get(Counter.COUNT_FETCHES_FAST)
    ask(log, 0, 1)
    assert counters.get(Counter.COUNT_FETCHES_FAST) == before + 1
    ask(log, 0, 0)
    assert counters.get(Counter.COUNT_FETCHES_FAST) == before + 1


def test_a_file_that_does_not_say_what_is_damaged_is_an_error(
    log: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    damage(log, 3, 5)
    path = log.partitions[0].path.parent.parent / "mpbroker.scrub"
    path.write_bytes(b"x" + path.read_bytes())
    assert ask(log, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert str(path) in caplog.text


# ---- damage that nobody has found yet ----


def test_what_is_no_batch_is_an_error_and_not_skipped(log: Logs) -> None:
    """Check that nothing is found behind an invalid header, except by the index."""
    overwrite(log, 3, 4)
    assert ask(log, 12).error_code == ErrorCode.CORRUPT_MESSAGE
    assert ask(log, 0).error_code == 0


def test_an_index_that_names_a_later_place_hides_nothing(log: Logs) -> None:
    path, each = log.partitions[0].path, bytes_each(log)
    index = path.with_name(segment_name(0, INDEX_SUFFIX))
    # Offset 3 is in the second batch, not in the sixth.
    index.write_bytes((3).to_bytes(4, "big") + (5 * each).to_bytes(4, "big"))
    for _ in range(2):
        assert offsets(ask(log, 4)) == list(range(4, 20))
    index.write_bytes((3).to_bytes(4, "big") + (each + 7).to_bytes(4, "big"))
    log.rig.handler.broker.readers.forget_all()
    log.rig.handler.broker.fetch_positions.forget_all()
    for _ in range(2):
        assert offsets(ask(log, 4)) == list(range(4, 20))


# ---- times ----


def ask_time(log: Logs, timestamp: int) -> tuple[int, int, int]:
    wanted_one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsRequest.ListOffsetsTopic("logged", [wanted_one])])
    log.rig.send(ApiKey.LIST_OFFSETS, 7, request)
    (reply,) = log.rig.processor.replies()
    response = decode_response_frame(ApiKey.LIST_OFFSETS, 7, log.rig.processor.frame_of(reply)[4:])[1]
    log.rig.processor.give_back(reply)
    assert isinstance(response, ListOffsetsResponse)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.timestamp, answer.offset


def test_times_are_looked_up_around_damage(log: Logs) -> None:
    damage(log, 3, 5)
    assert ask_time(log, T0 + 5) == (0, T0 + 5, 5)
    assert ask_time(log, T0 + 7) == (0, T0 + 10, 10)
    assert ask_time(log, -3) == (0, T0 + 19, 19)
    damage(log, 3, 10, version=2)
    assert ask_time(log, -3) == (0, T0 + 5, 5)


def test_times_in_damage_that_nobody_has_found_are_an_error(log: Logs) -> None:
    overwrite(log, 3, 4)
    assert ask_time(log, T0 + 2) == (0, T0 + 2, 2)
    assert ask_time(log, T0 + 15)[0] == ErrorCode.CORRUPT_MESSAGE


def test_a_time_index_that_names_a_later_place_hides_nothing(log: Logs) -> None:
    path = log.partitions[0].path
    index = path.with_name(segment_name(0, TIME_INDEX_SUFFIX))
    index.write_bytes((T0 + 3).to_bytes(8, "big") + (13).to_bytes(4, "big"))
    assert ask_time(log, T0 + 5) == (0, T0 + 5, 5)
    index.write_bytes((T0 + 13).to_bytes(8, "big") + (13).to_bytes(4, "big"))
    assert ask_time(log, T0 + 15) == (0, T0 + 15, 15)
    assert ask_time(log, -3) == (0, T0 + 19, 19)
