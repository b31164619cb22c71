"""Counter pages: bounds of buckets, counts in them, texts that anything may be written to."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm.counters import BUCKETS, CounterPage, bucket_bounds, bucket_of, page_bytes
from shm.region import Block, Region, sparse
from shm.word import Words

Fork = Callable[[Callable[[], None]], Any]
U64 = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 63).map(lambda order: 2**order),
    st.integers(1, 64).map(lambda o: 2**o - 1),
)


def page(counters: int = 3, histograms: int = 2) -> CounterPage:
    return CounterPage(sparse(page_bytes(counters, histograms)), counters, histograms)


@given(U64)
def test_a_value_lies_in_its_bucket(value: int) -> None:
    low, high = bucket_bounds(bucket_of(value))
    assert low <= value < high
    assert high - low <= max(1, low // 4), "a quarter of its power of two"


def test_buckets_follow_each_other_without_gap() -> None:
    last = bucket_of(2**64 - 1)
    assert last < BUCKETS
    for bucket in range(last):
        assert bucket_bounds(bucket)[1] == bucket_bounds(bucket + 1)[0]
        assert [bucket_of(bound) for bound in bucket_bounds(bucket)] == [bucket, bucket + 1]
    assert bucket_bounds(last)[1] == 2**64
    for bucket in (-1, BUCKETS):
        with pytest.raises(IndexError):
            bucket_bounds(bucket)


@given(st.lists(U64, max_size=200))
def test_values_are_counted_in_their_buckets(values: list[int]) -> None:
    one = page()
    for value in values:
        one.record(1, value)
    assert {bucket: count for bucket, count in enumerate(one.histogram(1)) if count} == Counter(
        map(bucket_of, values)
    )
    assert sum(one.histogram(0)) == 0


@given(st.lists(st.tuples(st.sampled_from(["add", "set"]), st.integers(0, 2), st.integers(0, 2**64 - 1))))
def test_counters_are_64_bits_that_wrap(steps: list[tuple[str, int, int]]) -> None:
    one, model = page(), [0, 0, 0]
    for what, counter, amount in steps:
        if what == "add":
            one.add(counter, amount)
            model[counter] = (model[counter] + amount) % 2**64
        else:
            one.set(counter, amount)
            model[counter] = amount
        assert [one.get(i) for i in range(3)] == model


def test_places_outside_are_refused() -> None:
    one = page()
    for counter in (-1, 3):
        for use in (
            lambda c=counter: one.add(c),
            lambda c=counter: one.set(c, 1),
            lambda c=counter: one.get(c),
        ):  # type: ignore[misc]
            with pytest.raises(IndexError):
                use()
    for histogram in (-1, 2):
        with pytest.raises(IndexError):
            one.record(histogram, 1)
        with pytest.raises(IndexError):
            one.histogram(histogram)
    for counters, histograms in ((-8, 1), (1, -1)):
        with pytest.raises(ValueError, match="cannot have"):
            CounterPage(sparse(65536), counters, histograms)
    with pytest.raises(ValueError, match="needs"):
        CounterPage(sparse(4096), 3, 2)
    with pytest.raises(ValueError, match="cache line"):
        CounterPage(sparse(65536)[8:], 3, 2)


@given(st.text(st.characters(), max_size=400))
def test_any_text_can_be_said(text: str) -> None:
    """Also lone surrogates (an undecodable file name), zeros, and a cut in the middle of a character."""
    one = page()
    one.set_last_error(text)
    one.set_status(text)
    expected = text.encode("utf-8", "backslashreplace").decode().replace("\0", " ")
    for found, room in ((one.last_error, 768), (one.status, 192)):
        assert expected.startswith(found)
        assert len(expected.encode()) - len(found.encode()) in range(4) or len(found.encode()) >= room - 4
    one.set_status("")
    assert one.status == ""


def test_an_attached_reader_sees_all_and_can_write_nothing(tmpfs: Path) -> None:
    size = page_bytes(3, 2)
    one = CounterPage(Region.create_public(tmpfs / "r", b"TESTCNTR", 1, [Block("c", size)]).block("c"), 3, 2)
    one.add(2, 5)
    one.record(1, 1000)
    one.set_status("ready")
    before = time.monotonic_ns()
    one.beat()
    reader = CounterPage(Region.attach(tmpfs / "r", b"TESTCNTR", 1).block("c"), 3, 2)
    assert (reader.get(2), reader.histogram(1)[bucket_of(1000)], reader.status, reader.turns) == (
        5,
        1,
        "ready",
        1,
    )
    assert before <= reader.heartbeat_ns <= time.monotonic_ns()
    for use in (
        lambda: reader.add(0),
        lambda: reader.set(0, 1),
        lambda: reader.record(0, 1),
        reader.beat,
        reader.clear,
        lambda: reader.set_status("x"),
        lambda: reader.set_last_error("x"),
    ):
        with pytest.raises(TypeError, match="read-only"):
            use()
    one.clear()
    assert (reader.get(2), sum(reader.histogram(1)), reader.status, reader.turns, reader.heartbeat_ns) == (
        0,
        0,
        "",
        0,
        0,
    )


def test_a_reader_never_sees_a_counter_go_back(fork: Fork, dice: random.Random) -> None:
    """Each addition crosses the 32-bit boundary at some time; half a number would be far off or smaller."""
    memory, step = sparse(page_bytes(2, 1)), 2**31 + dice.randrange(2**20) * 2 + 1

    def count() -> None:
        one = CounterPage(memory, 2, 1)
        for _ in range(200_000):
            one.add(0, step)
        one.set(1, 1)

    child, one, last = fork(count), CounterPage(memory, 2, 1), 0
    while not one.get(1):
        now = one.get(0)
        assert now >= last
        assert now % step == 0
        last = now
    assert child.wait() == 0
    assert one.get(0) == step * 200_000


def test_words_of_somebody_else_are_read_and_never_written() -> None:
    block = sparse(4096)
    Words(block).store(3, 7)
    theirs = Words(block.toreadonly())
    assert theirs.load(3) == 7
    with pytest.raises(TypeError, match="for reading only"):
        theirs.store(3, 8)
    assert theirs.load(3) == 7
