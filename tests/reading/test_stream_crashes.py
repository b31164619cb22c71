"""Whatever dies when, each record is in one batch: a query as Spark runs it, over topics that grow.

Spark writes the end of a batch into its checkpoint, plans and runs the batch, and writes that it is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.reading.errors import SourceUnavailable
from mpbroker.reading.options import TopicPartition
from mpbroker.reading.stream import Stream
from tests.reading.test_stream import Time, Topics, stream

PARTITIONS = 3


class Checkpoint:
    """What outlives a run: the ends of batches, and how many of them are finished."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.finished = 0
        # The ranges of each batch, as it was planned last.
        self.planned: dict[int, list[tuple[str, int, int, int]]] = {}


class Run:
    """One run of the query. (Spark: MicroBatchExecution.)"""

    def __init__(self, checkpoint: Checkpoint, source: Stream) -> None:
        self._checkpoint = checkpoint
        self._source = source

    def trigger(self, dies_at: int) -> bool:
        """Whether the run outlived it: it dies before what is written, before the batch or before its end."""
        checkpoint = self._checkpoint
        if checkpoint.finished < len(checkpoint.ends):
            return self._batch(dies_at)
        start = self._start()
        end = json.dumps(self._source.next_end(start))
        if checkpoint.ends and end == checkpoint.ends[-1]:
            return dies_at != 0
        if dies_at == 0:
            return False
        checkpoint.ends.append(end)
        return dies_at != 1 and self._batch(dies_at)

    def _batch(self, dies_at: int) -> bool:
        checkpoint = self._checkpoint
        found = self._source.plan(self._start(), json.loads(checkpoint.ends[-1]))
        ranges = [(one.topic, one.partition, one.start, one.end) for one in found]
        checkpoint.planned[checkpoint.finished] = ranges
        if dies_at == 2:
            return False
        checkpoint.finished += 1
        return True

    def _start(self) -> Mapping[str, Any]:
        """Where the batch that is to be finished next begins."""
        number = self._checkpoint.finished
        if number == 0:
            self._source.initial()
            return self._source.initial()
        found: Mapping[str, Any] = json.loads(self._checkpoint.ends[number - 1])
        return found


def covered(checkpoint: Checkpoint) -> dict[TopicPartition, tuple[int, int]]:
    """From where to where each partition was read, without a gap or a second time."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for number in range(checkpoint.finished):
        for topic, partition, start, end in checkpoint.planned[number]:
            first, last = found.get((topic, partition), (start, start))
            assert start == last, f"{topic}-{partition}: after {last} came {start}"
            assert end > start
            found[topic, partition] = (first, end)
    return found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(1, 50)),
        # The step at which it dies; 3: it does not.
        st.tuples(st.just("trigger"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("broker"), st.booleans(), st.just(0)),
    ),
    max_size=40,
)


@given(
    steps,
    st.sampled_from(("earliest", "latest")),
    st.sampled_from(({}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "90"})),
)
def test_each_record_is_in_one_batch(
    done: list[tuple[str, int, int]], starting: str, limits: dict[str, str]
) -> None:
    time = Time()
    topics = Topics(time)
    topics.put(5)
    checkpoint = Checkpoint()
    options = {"startingOffsets": starting, "fetchOffset.numRetries": "1", **limits}

    def begun() -> Run:
        return Run(checkpoint, stream(topics, **options))

    run = begun()
    for action, which, count in done:
        if action == "append":
            known = topics.found.get(("t", which))
            topics.put((known.end if known else 0) + count, partition=which)
        elif action == "broker":
            topics.error = None if which else SourceUnavailable("it is down")
        else:
            try:
                lives = run.trigger(which)
            except SourceUnavailable:
                lives = False
            if not lives:
                run = begun()
    topics.error = None
    for _ in range(200):
        assert run.trigger(3)
    found = covered(checkpoint)
    ends = {one: bounds.end for one, bounds in topics.found.items()}
    assert {one: end for one, (_, end) in found.items()}.items() <= ends.items(), "all is read"
    first_end = json.loads(checkpoint.ends[0])["t"]
    for one, (first, _) in found.items():
        if starting == "earliest":
            assert first == 0
        else:
            # The first batch of a query that begins at the latest is its start.
            assert first == first_end.get(str(one[1]), 0)
    if starting == "earliest":
        assert set(found) == {one for one, end in ends.items() if end}
