"""What a coordinator reads in `__consumer_offsets` does not depend on what compaction has left of it."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.groups.group_manager import GroupContents, GroupMetadataManager
from mpbroker.coordinator.groups.offsets import Offsets, TransactionKey
from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue, encode
from mpbroker.records.markers import ABORT, COMMIT
from tests.support.compacted_segments import DAY_MS, T0, Segments
from tests.support.forms import rounds
from tests.support.group_rig import GroupRig

PRODUCERS = st.integers(1, 2)
KEYS = st.builds(OffsetKey, st.just("g"), st.just("t"), st.integers(0, 1))
COMMIT_IN_TRANSACTION = st.tuples(st.just("commit"), KEYS, PRODUCERS)
END = st.tuples(st.just("end"), PRODUCERS, st.sampled_from([ABORT, COMMIT]))
CLEAN = st.tuples(st.just("clean"), st.integers(0, 2), st.integers(0, 1), st.sampled_from([None, None, 0, 1]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        COMMIT_IN_TRANSACTION,
        COMMIT_IN_TRANSACTION,
        END,
        END,
        st.just(("roll",)),
        CLEAN,
        CLEAN,
    ),
    min_size=20,
    max_size=80,
)


def outcomes(log: Segments, manager: GroupMetadataManager) -> list[tuple[object, ...]]:
    """Return the offsets that count, and those that will when the open transactions end, in either way."""
    loaded = Offsets()
    contents = GroupContents(manager, loaded)
    contents.begin()
    for batch in log.batches():
        contents.read(0, batch)
    found: list[tuple[object, ...]] = []
    for ends in ({}, {1: True, 2: True}, {2: True, 1: True}, {1: True, 2: False}, {1: False, 2: True}):
        offsets = deepcopy(loaded)
        for producer_id, is_commit in ends.items():
            offsets.end_transaction(TransactionKey(0, producer_id), is_commit)
        found.append((offsets.is_in_transaction("g"), sorted(offsets.of("g").items())))
    return found


@given(STEPS)
@settings(max_examples=rounds(450), deadline=None)
def test_compaction_changes_nothing(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Check offsets of transactions, aborted ones too, whose markers lie in later segments."""
    with tempfile.TemporaryDirectory() as name:
        log, manager, day = Segments(Path(name)), GroupRig().coordinator.manager, 0
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
                        before = outcomes(log, manager)
                        log.clean(now_ms=T0 + day * DAY_MS, young=young, swaps=swaps, segment_bytes=300)
                        assert outcomes(log, manager) == before
