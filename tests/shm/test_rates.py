"""Shared rates against a model that keeps every sample by Kafka's rule, for one writer and for many."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shm import region
from shm.rates import SharedRates, block_bytes
from tests.support.forms import rounds

WINDOW_MS, SAMPLES, WRITERS, ROWS = 1000, 11, 5, 64
KEY = 0x1234_5678_9ABC_DEF1


def make_block(samples: int = SAMPLES, rows: int = ROWS) -> memoryview:
    return region.sparse(block_bytes(WRITERS, rows, samples))


def writers(block: memoryview, samples: int = SAMPLES, window_ms: int = WINDOW_MS) -> list[SharedRates]:
    return [SharedRates(block, WRITERS, ROWS, samples, window_ms, own) for own in range(WRITERS)]


@dataclass
class Sample:
    start_ms: int
    last_ms: int
    value: int = 0


@dataclass
class Model:
    """Kafka's SampledStat and Rate, of one process, with all its samples kept."""

    count: int = SAMPLES
    window_ms: int = WINDOW_MS
    samples: list[Sample] = field(default_factory=list)

    def record(self, value: int, now_ms: int) -> None:
        if not self.samples or now_ms - self.samples[-1].start_ms >= self.window_ms:
            self.samples.append(Sample(now_ms, now_ms))
        self.samples[-1].value += value
        self.samples[-1].last_ms = now_ms

    def measure(self, now_ms: int) -> tuple[int, int]:
        live = [s for s in self.samples if now_ms - s.last_ms < self.count * self.window_ms]
        elapsed = now_ms - min((s.start_ms for s in live), default=now_ms)
        missing = max(0, self.count - 1 - elapsed // self.window_ms)
        return sum(s.value for s in live), max(1, elapsed + missing * self.window_ms)


steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30), st.integers(0, 1200), st.integers(0, 30_000)),
        st.integers(0, WRITERS - 1),
        st.integers(-50, 5000),
    ),
    max_size=150,
)


@settings(max_examples=rounds(200), deadline=None)
@given(steps, st.integers(1, 12), st.sampled_from([1, 100, 1000, 3000]))
def test_many_writers_are_one_sensor(
    events: list[tuple[int, int, int]], samples: int, window_ms: int
) -> None:
    block = make_block(samples)
    them = writers(block, samples, window_ms)
    model, now_ms = Model(samples, window_ms), 5_000_000
    for pause_ms, writer, value in events:
        now_ms += pause_ms
        assert them[writer].record(KEY, value, now_ms)
        model.record(value, now_ms)
        reader = them[(writer + 1) % WRITERS]
        assert reader.measure(KEY, now_ms) == model.measure(now_ms)
        assert reader.measure(KEY, now_ms + 700) == model.measure(now_ms + 700)


def test_keys_do_not_mix() -> None:
    one, two, *_ = writers(make_block())
    # The same places, in both groups.
    other = KEY ^ (1 << 60)
    for key, value in ((KEY, 10), (other, 20), (KEY, 1)):
        assert one.record(key, value, 1000)
    assert two.record(other, 5, 1001)
    assert (one.measure(KEY, 1001)[0], one.measure(other, 1001)[0], two.measure(99, 1001)[0]) == (11, 25, 0)


def test_idle_rows_are_given_to_other_keys() -> None:
    one, two, *_ = writers(make_block())
    # Both groups are the same one: eight places.
    crowd = [(n << 40) | 1 << 32 | 1 for n in range(1, 10)]
    for key in crowd[:8]:
        assert one.record(key, 7, 1000)
    assert not one.record(crowd[8], 7, 1000 + SAMPLES * WINDOW_MS - 1)
    assert one.measure(crowd[8], 2000)[0] == 0
    assert one.record(crowd[8], 7, 1000 + SAMPLES * WINDOW_MS)
    assert two.measure(crowd[8], 1000 + SAMPLES * WINDOW_MS)[0] == 7


def test_a_successor_goes_on_where_its_predecessor_stopped() -> None:
    block = make_block()
    first = SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 2)
    model = Model()
    for now_ms in range(10_000, 14_000, 300):
        first.record(KEY, 100, now_ms)
        model.record(100, now_ms)
    successor = SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 2)
    for now_ms in range(14_000, 19_000, 300):
        successor.record(KEY, 70, now_ms)
        model.record(70, now_ms)
        assert successor.measure(KEY, now_ms) == model.measure(now_ms)


def test_a_writer_that_is_never_replaced_expires() -> None:
    one, two, *_ = writers(make_block())
    one.record(KEY, 1000, 10_000)
    two.record(KEY, 1, 15_000)
    assert two.measure(KEY, 15_000)[0] == 1001
    assert two.measure(KEY, 10_000 + SAMPLES * WINDOW_MS) == (1, 10_000)


EVENTS, EVENTS_PER_MS = 30_000, 64


def add_for_ever(block: memoryview, key: int, counted: memoryview, told: int) -> None:
    """Adds to one key, and to so many others that rows are recycled all the time; says what it has added."""
    mine = SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 1)
    for added in range(EVENTS):
        now_ms = 1_000_000 + added // EVENTS_PER_MS
        mine.record(((added % 700 + 2) << 6 | 1) * 0x9E3779B97F4A7C15 % 2**64, 1, now_ms)
        mine.record(key, 1, now_ms)
        counted[0] = added + 1
        if added % EVENTS_PER_MS == 0:
            os.write(told, b".")
    while True:
        signal.pause()


@pytest.mark.parametrize("told_before_the_end", range(5, 65, 5))
def test_killed_anywhere_a_writer_loses_at_most_the_event_under_way(told_before_the_end: int) -> None:
    block, key = make_block(), KEY
    counted = region.sparse(4096).cast("Q")
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        add_for_ever(block, key, counted, writable)
    for _ in range(told_before_the_end):
        assert os.read(readable, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(readable)
    os.close(writable)
    now_ms = 1_000_000 + counted[0] // EVENTS_PER_MS
    reader = SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 0)
    total, _ = reader.measure(key, now_ms)
    assert counted[0] >= (told_before_the_end - 1) * EVENTS_PER_MS
    assert total - counted[0] in (0, 1)
    successor = SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 1)
    assert successor.record(key, 5, now_ms)
    assert reader.measure(key, now_ms)[0] == total + 5
    assert reader.measure(key, now_ms + SAMPLES * WINDOW_MS)[0] == 0


@pytest.mark.parametrize("last_store", range(9))
def test_each_store_of_a_new_sample_may_be_the_last(last_store: int) -> None:
    """Begins a sample store by store, as rates.pyx does, and stops after `last_store` of them."""
    block = make_block()
    one, two, *_ = writers(block)
    for now_ms in range(100_000, 100_000 + 12_000, 1000):
        assert one.record(KEY, 10, now_ms)
    now_ms = 112_000
    model = one.measure(KEY, now_ms)
    page = (8 * WRITERS + 4095) // 4096 * 4096
    words = block[page : page + 8 * ROWS].cast("Q")
    row = list(words).index(KEY)
    at = page + 8 * ROWS + row * (SAMPLES + 1) * 24
    samples = block[at : at + (SAMPLES + 1) * 24].cast("Q")
    oldest = min(range(SAMPLES + 1), key=lambda i: samples[3 * i]) * 3
    stores = [(oldest + 2, 0), (oldest + 1, 0), (oldest, now_ms), (oldest + 1, 10), (oldest + 2, now_ms)]
    for where, value in stores[:last_store]:
        samples[where] = value
    total, _ = two.measure(KEY, now_ms)
    assert total - model[0] in (0, 10)
    assert SharedRates(block, WRITERS, ROWS, SAMPLES, WINDOW_MS, 0).record(KEY, 10, now_ms)
    assert two.measure(KEY, now_ms)[0] - model[0] in (10, 20)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 12}, {"rows": 4}, {"samples": 0}, {"window_ms": 0}, {"own": WRITERS}, {"rows": 1 << 20}],
)
def test_what_cannot_be(wrong: dict[str, int]) -> None:
    sizes = {"writers": WRITERS, "rows": ROWS, "samples": SAMPLES, "window_ms": WINDOW_MS, "own": 0} | wrong
    with pytest.raises(ValueError, match="rates"):
        SharedRates(make_block(), **sizes)
    with pytest.raises(ValueError, match="key 0"):
        writers(make_block())[0].record(0, 1, 1000)
