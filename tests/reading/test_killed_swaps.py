"""A partition at rest whose segments were being swapped when its broker was killed: committed records."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.reading.transactions import at_rest
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.storage.checkpoints import write_topic_id
from mpbroker.storage.names import SNAPSHOT_SUFFIX
from mpbroker.storage.segments import segments_of
from tests.support.compacted_segments import Segments
from tests.support.killed_swaps import Killed, Steps
from tests.support.reading_queries import UNCOMMITTED, read
from tests.support.spark_logs import checkpoint, new_log_dir


def segments(directory: Path) -> tuple[Segments, list[int]]:
    """Write three segments to be merged and an active one, with transactions; return committed offsets.

    Producer 1 aborts within a segment and over an edge, and the last of its transactions ends in the active
    segment. Producer 2 aborts only there.
    """
    directory.mkdir()
    write_topic_id(directory, b"t" * 16)
    log = Segments(directory)
    committed = [log.append([(b"a", b"0")])]
    _write(log, 1, b"b")
    log.end_transaction(ABORT, 1)
    _write(log, 1, b"c")
    log.roll()
    _write(log, 2, b"d")
    committed.append(log.append([(b"a", b"1")]))
    log.end_transaction(ABORT, 1)
    committed.append(_write(log, 1, b"e"))
    log.end_transaction(COMMIT, 1)
    log.roll()
    committed.append(log.append([(b"f", b"2")]))
    log.end_transaction(ABORT, 2)
    committed.append(_write(log, 1, b"g"))
    log.roll()
    committed.append(log.append([(b"h", b"3")]))
    log.end_transaction(COMMIT, 1)
    return log, committed


def _write(log: Segments, producer: int, key: bytes) -> int:
    return log.append([(key, b"x")], producer=(producer, 0, -1), transactional=True)


def clean(log: Segments, steps: Steps, steps_done: int) -> None:
    """Merge the sealed segments; killed after so many steps of the swap."""
    producers = log.producers.snapshot()
    (new,) = Cleaner(log.task(producers=producers), Buffers()).run()
    assert len(new.bases) == 3
    fd = os.open(log.directory, os.O_RDONLY)
    steps.left = steps_done
    try:
        begin_swap(fd, new.bases[0])
        swap_in(fd, new.bases)
    finally:
        steps.left = -1
        os.close(fd)


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_whatever_a_killed_swap_left_readers_get_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_snapshot: bool
) -> None:
    steps = Steps(monkeypatch)
    for steps_done in range(100):
        log_dir = new_log_dir(tmp_path / f"{steps_done}")
        log, committed = segments(log_dir / "t-0")
        if has_snapshot:
            log.path(log.bases[-1], SNAPSHOT_SUFFIX).write_bytes(log.producers.snapshot())
        checkpoint(log_dir, {("t", 0): log.end})
        ended = False
        with suppress(Killed):
            clean(log, steps, steps_done)
            ended = True
        # The first record has a key that a later one has, too.
        for options in ({}, {"maxRecordsPerPartition": 1}, {"maxRecordsPerPartition": 3}):
            found = read(log_dir, **options)
            left = sorted(path.name for path in log.directory.iterdir())
            assert found in (committed, committed[1:]), (steps_done, options, left)
        for one in at_rest(log.directory, segments_of(log.directory), log.end).aborted:
            assert one.first_offset < one.last_offset, steps_done
        assert {*committed[1:]} <= {*read(log_dir, **UNCOMMITTED)}
        if ended:
            break
    else:
        pytest.fail("the swap never ended")
    assert steps_done > 20
