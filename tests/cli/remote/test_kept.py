"""Why local segments stay: each cause, and neighbours with the same one together."""

from __future__ import annotations

import pytest

from mpbroker.cli.remote.kept import Partition, Retention, Segment, Tier, kept
from mpbroker.storage.remote_segments import RemoteSegment, RemoteSegments

SIZE = 1000
NOW_MS = 1_000_000
TIER = Tier(is_fenced=False, down_since_ms=None, status="waiting", last_error="", now_ms=NOW_MS)
RETENTION = Retention(is_tiered=True, is_copy_disabled=False, ms=-1, bytes=-1)


def partition(uploaded: int = 0, stable: int = 100, largest_ms: int = NOW_MS) -> Partition:
    """Three sealed segments of ten offsets, and one that is written; the first ones are uploaded."""
    remote = RemoteSegments(
        RemoteSegment(10 * number, 10 * number + 10, SIZE, largest_ms, b"i" * 16)
        for number in range(uploaded)
    )
    return Partition([Segment(base, SIZE, NOW_MS) for base in (0, 10, 20, 30)], stable, remote)


def causes(
    partition: Partition, retention: Retention = RETENTION, tier: Tier = TIER
) -> list[tuple[int, str]]:
    return [(one.segments, one.why) for one in kept(partition, retention, tier)]


def test_a_topic_that_is_not_tiered() -> None:
    found = causes(partition(), RETENTION._replace(is_tiered=False))
    assert found == [(4, "the topic is not tiered")]


def test_neighbours_with_the_same_cause_are_one_row() -> None:
    first, last = kept(partition(), RETENTION, TIER)
    assert (first.start, first.end, first.segments, first.bytes) == (0, 30, 3, 3 * SIZE)
    assert (last.start, last.end, last.segments) == (30, 100, 1)
    assert "not sealed" in last.why


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        (TIER, "waits for its upload"),
        (TIER._replace(is_fenced=True, last_error="another broker's"), "another broker's"),
        (
            TIER._replace(down_since_ms=1, last_error="no answer"),
            "fails since 1970-01-01T00:00:00.001Z: no answer",
        ),
    ],
)
def test_what_is_not_uploaded_waits_for_the_tier(tier: Tier, says: str) -> None:
    (count, why), _ = causes(partition(), tier=tier)
    assert count == 3
    assert says in why


def test_what_is_above_the_last_stable_offset_waits_for_its_transaction() -> None:
    uploads, waits, _ = causes(partition(stable=20))
    assert (uploads[0], waits[0]) == (2, 1)
    assert "last stable offset, 20" in waits[1]


def test_a_copy_that_is_disabled() -> None:
    assert "copy.disable" in causes(partition(), RETENTION._replace(is_copy_disabled=True))[0][1]


def test_what_is_uploaded_waits_for_local_retention() -> None:
    assert "no limit" in causes(partition(3))[0][1]
    by_time = RETENTION._replace(ms=100)
    assert "within local retention (100 ms)" in causes(partition(3, largest_ms=NOW_MS - 100), by_time)[0][1]
    for ms, text in ((604_800_000, "7 days"), (3_600_000, "1 hour"), (90_000_000, "25 hours")):
        assert f"({text})" in causes(partition(3, largest_ms=NOW_MS), RETENTION._replace(ms=ms))[0][1]
    assert "has passed" in causes(partition(3, largest_ms=NOW_MS - 101), by_time)[0][1]


def test_local_retention_by_size_keeps_what_fits() -> None:
    passed, within, active = causes(partition(3), RETENTION._replace(bytes=2 * SIZE))
    assert (passed[0], within[0], active[0]) == (2, 1, 1)
    assert "has passed" in passed[1]
    assert "within" in within[1]


def test_limits_of_the_topic_are_those_of_the_whole_where_local_ones_say_so() -> None:
    settings = {
        "remote.storage.enable": "true",
        "remote.log.copy.disable": "false",
        "retention.ms": "5",
        "local.retention.ms": "-2",
        "retention.bytes": "-1",
        "local.retention.bytes": "7",
    }
    assert Retention.of(settings) == Retention(is_tiered=True, is_copy_disabled=False, ms=5, bytes=7)
