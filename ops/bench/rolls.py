"""What a roll costs, with the next segment prepared and without: `python -m ops.bench.rolls DIR`.

Times of `PartitionLog.roll` in a partition that is made in DIR and removed again; what a roll leaves to be
synced is synced between two of them, as a commit round does.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.partition.prepared_segment import Prepared
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

ROLLS = 300
PRODUCERS = 10


def append(log: PartitionLog) -> None:
    """One record, as the reference does it, so that the next segment has another base."""
    data = build_batch([NewRecord(bytes(100), timestamp=time.time_ns() // 1_000_000)], leader_epoch=0)
    state = log.state
    os.pwrite(state.fd, data, state.size)
    state.note_batch(state.log_end, state.size, len(data), -1)


def measured(directory: Path, *, is_prepared: bool) -> list[int]:
    """Nanoseconds of each roll."""
    log = PartitionLog.create(directory, "t", 0, bytes(16), resolve(BrokerConfig(), {}))
    for producer in range(PRODUCERS):
        log.state.producers.update(producer, 0, 0, 1, 0, time.time_ns() // 1_000_000, False)
    times = []
    for _ in range(ROLLS):
        append(log)
        log.prepared = Prepared(directory) if is_prepared else None
        begun_ns = time.perf_counter_ns()
        to_sync = log.roll()
        times.append(time.perf_counter_ns() - begun_ns)
        for fd in to_sync:
            os.fsync(fd)
            os.close(fd)
    log.close_files()
    return sorted(times)


def main() -> None:
    where = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    try:
        for name, is_prepared in (("made", False), ("prepared", True)):
            times = measured(where / f"t-{int(is_prepared)}", is_prepared=is_prepared)
            p50, p99 = (times[int(len(times) * share)] / 1000 for share in (0.5, 0.99))
            print(f"{name:>8}: p50 {p50:.0f} us, p99 {p99:.0f} us, most {times[-1] / 1000:.0f} us")
    finally:
        shutil.rmtree(where)


if __name__ == "__main__":
    main()
