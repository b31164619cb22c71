"""What a coordinator reads in `__consumer_offsets` does not depend on what compaction has left of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.pending import TransactionKey
from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue, encode
from mpbroker.records.markers import ABORT, COMMIT
from tests.support.compacted_segments import DAY_MS, T0, Segments
from tests.support.forms import rounds
from tests.support.group_rig import GroupRig

PRODUCERS = st.integers(1, 2)
KEYS = st.builds(OffsetKey, st.just("g"), st.just("t"), st.integers(0, 2))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("commit"), KEYS, PRODUCERS),
        st.tuples(st.just("commit"), KEYS, PRODUCERS),
        st.tuples(st.just("end"), PRODUCERS, st.sampled_from([ABORT, COMMIT])),
        st.just(("roll",)),
        st.tuples(
            st.just("clean"), st.integers(0, 2), st.integers(0, 1), st.sampled_from([None, None, 0, 1])
        ),
    ),
    min_size=12,
    max_size=60,
)


def loaded(log: Segments) -> Offsets:
    coordinator = GroupRig().coordinator
    coordinator.contents.begin()
    for batch in log.batches():
        coordinator.contents.read(0, batch)
    return coordinator.offsets


def outcomes(log: Segments) -> list[tuple[object, ...]]:
    """Return the offsets that count, and those that will when the open transactions end, in either way."""
    found: list[tuple[object, ...]] = []
    for ends in ({}, {1: True, 2: True}, {2: True, 1: True}, {1: True, 2: False}, {1: False, 2: True}):
        offsets = loaded(log)
        for producer_id, is_commit in ends.items():
            offsets.end_transaction(TransactionKey(0, producer_id), is_commit)
        found.append((offsets.is_in_transaction("g"), sorted(offsets.of("g").items())))
    return found


@given(STEPS)
@settings(max_examples=rounds(600), deadline=None)
def test_compaction_changes_nothing(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Check offsets of transactions, aborted ones too, whose markers lie in later segments."""
    with tempfile.TemporaryDirectory() as name:
        log, day = Segments(Path(name)), 0
        log.path(0).touch()
        for what, *given_with in steps:
            match what, *given_with:
                case "commit", key, producer_id:
                    pair = encode((key, OffsetValue(log.end, -1, "", T0)))
                    log.append([pair], producer=(producer_id, 0, log.end), transactional=True)
                case "commit", key:
                    log.append([encode((key, OffsetValue(log.end, -1, "", T0)))])
                case "delete", key:
                    log.append([encode((key, None))])
                case "end", producer_id, kind:
                    log.end_transaction(kind, producer_id)
                case ("roll",):
                    log.roll()
                case "clean", days, young, swaps:
                    day += days
                    if log.dirty(young=young).bytes_dirty:
                        before = outcomes(log)
                        log.clean(now_ms=T0 + day * DAY_MS, young=young, swaps=swaps, segment_bytes=300)
                        assert outcomes(log) == before
