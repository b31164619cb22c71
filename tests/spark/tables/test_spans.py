"""What a table's snapshots say of its offsets, against sets of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.jobs.frame import JobError
from spark_integration.tables.spans import Covered, Span

Step = tuple[int, int, int, bool]


def offsets(covered: Covered) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for span in covered.spans:
        added = set(range(span.start, span.end))
        assert not added & found.setdefault(span.partition, set())
        found[span.partition] |= added
    return found


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 5), st.booleans())))
def test_spans_are_sets(steps: list[Step]) -> None:
    """Added with and without gaps, and cut, they are what sets of offsets are, and stay few."""
    covered, model, ends, gaps = Covered("t"), {0: set[int](), 1: set[int]()}, [0, 0], 0
    for partition, gap, count, is_cut in steps:
        log = ("id", partition)
        if is_cut:
            ends[partition] = max(ends[partition] - count, 0)
            covered = covered.cut({log: ends[partition]})
            model[partition] = {one for one in model[partition] if one < ends[partition]}
            continue
        start = ends[partition] + gap
        gaps += bool(gap)
        ends[partition] = start + count
        covered = covered.with_spans([Span(*log, start, ends[partition], epoch=1)])
        model[partition] |= set(range(start, ends[partition]))
    assert {0: set(), 1: set(), **offsets(covered)} == model
    assert len(covered.spans) <= 2 + gaps


def test_a_topic_made_anew_is_another_log() -> None:
    first = Covered("t").with_spans([Span("old", 0, 0, 9), Span(None, 0, 0, 3)])
    both = first.with_spans([Span("new", 0, 0, 4)])
    assert {log: span.end for log, span in both.ends().items()} == {
        ("old", 0): 9,
        (None, 0): 3,
        ("new", 0): 4,
    }


@pytest.mark.parametrize("span", [Span("id", 0, 4, 9), Span("id", 0, 7, 6)])
def test_what_does_not_follow_is_refused(span: Span) -> None:
    with pytest.raises(JobError, match="do not follow"):
        Covered("t").with_spans([Span("id", 0, 0, 5)]).with_spans([span])
