"""Offsets as the checkpoint has them, and how much of what is there a batch takes."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.reading.admission import Delay, at_most_bytes, at_most_offsets, backlog
from mpbroker.reading.errors import OptionError
from mpbroker.reading.plan import OffsetRange
from mpbroker.reading.stream_offsets import StreamOffsets, parse_offsets

topics = st.text("abz._-9", min_size=1, max_size=5)
partitions = st.tuples(topics, st.integers(0, 12))
offsets = st.dictionaries(partitions, st.integers(0, 1 << 62), max_size=8)
topic_ids = st.dictionaries(topics, st.binary(min_size=16, max_size=16), max_size=3)


@given(offsets, topic_ids)
def test_offsets_survive_the_checkpoint(
    given_offsets: dict[tuple[str, int], int], ids: dict[str, bytes]
) -> None:
    written = StreamOffsets(given_offsets, ids)
    text = json.dumps(written.to_json())
    assert parse_offsets(json.loads(text)) == written
    backwards = StreamOffsets(dict(reversed(given_offsets.items())), dict(reversed(ids.items())))
    assert json.dumps(backwards.to_json()) == text, "Spark compares offsets as text"


@given(offsets)
def test_it_is_the_json_of_the_kafka_source(given_offsets: dict[tuple[str, int], int]) -> None:
    found = StreamOffsets(given_offsets, {"t": bytes(16)}).to_json()
    flattened = {
        (topic, int(partition)): offset
        for topic, parts in found.items()
        for partition, offset in parts.items()
    }
    assert flattened == given_offsets


def test_partitions_are_sorted_as_numbers() -> None:
    found = StreamOffsets({("t", 10): 1, ("t", 2): 2, ("a", 0): 3}, {"t": bytes(16)}).to_json()
    assert json.dumps(found) == '{"a": {"0": 3}, "t": {"2": 2, "10": 1}, "t#AAAAAAAAAAAAAAAAAAAAAA": {}}'


@pytest.mark.parametrize("wrong", [{"t": 5}, {"t": {"x": 5}}, {"t": {"0": "five"}}, {"t#short": {}}])
def test_what_another_source_wrote_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="was it written by another source"):
        parse_offsets(wrong)


def test_ids_that_are_not_known_are_equal_to_all() -> None:
    known = StreamOffsets({("t", 0): 1}, {"t": b"1" * 16})
    assert known.of_another("t", b"2" * 16)
    assert not known.of_another("t", b"1" * 16)
    assert not known.of_another("t", None)
    assert not StreamOffsets({("t", 0): 1}).of_another("t", b"1" * 16)


ranges = st.dictionaries(partitions, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8)


@given(ranges, st.integers(1, 10**7))
def test_a_limit_of_offsets(found: dict[tuple[str, int], tuple[int, int]], limit: int) -> None:
    begins = {one: begin for one, (begin, _) in found.items()}
    ends = {one: begin + waiting for one, (begin, waiting) in found.items()}
    cut = at_most_offsets(limit, begins, ends)
    assert set(cut) == set(ends)
    with_backlog = [one for one in ends if ends[one] > begins[one]]
    for one in ends:
        assert begins[one] <= cut[one] <= ends[one]
        assert cut[one] > begins[one] or one not in with_backlog, "nobody starves"
    # Kafka's source rounds up what is less than one offset.
    assert backlog(begins, cut) <= limit + len(with_backlog)
    if backlog(begins, ends) <= limit:
        assert cut == ends


@given(ranges, st.integers(1, 10**6))
def test_whatever_the_limit_all_is_read_in_the_end(
    found: dict[tuple[str, int], tuple[int, int]], limit: int
) -> None:
    begins = {one: begin for one, (begin, _) in found.items()}
    ends = {one: begin + waiting for one, (begin, waiting) in found.items()}
    most_batches = math.ceil(backlog(begins, ends) / limit) + 64 * (len(ends) + 1)
    for _ in range(most_batches):
        if begins == ends:
            break
        following = at_most_offsets(limit, begins, ends)
        assert following != begins, "a batch that moves nothing would be the last"
        begins = following
        if limit < len(ends):
            return
    assert begins == ends


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 500)), min_size=1, max_size=30),
    st.integers(1, 20_000),
)
def test_a_limit_of_bytes_takes_whole_batches(batches: list[tuple[int, int]], limit: int) -> None:
    """Batches of (offsets, bytes)."""
    one = ("t", 0)
    ends, total = [0], 0
    for count, size in batches:
        ends.append(ends[-1] + count)
        total += size

    def weight(wanted: OffsetRange) -> int:
        return sum(
            size
            for (begin, end), (_, size) in zip(pairwise(ends), batches, strict=True)
            if begin < wanted.end and end > wanted.start
        )

    cut = at_most_bytes(limit, {one: 0}, {one: ends[-1]}, weight)[one]
    assert cut in ends[1:]
    assert weight(OffsetRange(one, 0, cut)) <= max(limit, batches[0][1])
    if cut < ends[-1]:
        assert weight(OffsetRange(one, 0, cut + 1)) > limit, "there was room for more"
    else:
        assert total <= max(limit, batches[0][1])


def test_bytes_that_are_not_known_do_not_limit() -> None:
    assert at_most_bytes(1, {("t", 0): 0}, {("t", 0): 99}, lambda _wanted: 0) == {("t", 0): 99}


def test_a_batch_is_held_back_until_enough_waits_or_time_is_up() -> None:
    delay = Delay(100, 1000)
    assert not delay.holds(1, 0), "the first one never is"
    assert delay.holds(99, 999)
    assert not delay.holds(100, 999)
    assert delay.holds(99, 1998)
    assert not delay.holds(0, 1999), "a second after the last one"
    assert not Delay(None, 1000).holds(0, 0)
