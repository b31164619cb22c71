"""Whatever a log looks like and wherever a query cuts it: each wanted record comes once, in order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.reading import read_local
from mpbroker.records.compression import Codec
from mpbroker.records.markers import COMMIT
from spark_integration.source import MpbrokerDataSource
from tests.support.forms import rounds
from tests.support.spark_logs import PartitionWriter, checkpoint, new_log_dir, numbered


class Step(NamedTuple):
    """What is appended next: a batch, after a gap and a roll."""

    records: int
    gap: int
    roll: bool
    marker: bool
    codec: Codec
    value_bytes: int


STEPS = st.lists(
    st.builds(
        Step,
        records=st.integers(1, 40),
        gap=st.sampled_from([0, 0, 0, 1, 500]),
        roll=st.sampled_from([False, False, False, True]),
        marker=st.sampled_from([False, False, True]),
        codec=st.sampled_from(list(Codec)),
        value_bytes=st.sampled_from([1, 100, 1500]),
    ),
    min_size=1,
    max_size=25,
)


def write(log_dir: Path, steps: list[Step]) -> tuple[PartitionWriter, list[int]]:
    writer, written = PartitionWriter(log_dir, "t"), []
    for step in steps:
        writer.skip(step.gap)
        if step.roll and writer.position:
            writer.roll()
        if step.marker:
            writer.append_marker(COMMIT)
        first = writer.next_offset
        written += range(first, first + step.records)
        writer.append(numbered(step.records, first=first, value_bytes=step.value_bytes), codec=step.codec)
    return writer, written


@settings(deadline=None, max_examples=rounds(60))
@given(
    steps=STEPS,
    edges=st.tuples(*[st.floats(0, 1)] * 3),
    parts=st.integers(1, 9),
    window=st.sampled_from([5000, 1 << 20]),
)
def test_each_record_once(
    steps: list[Step], edges: tuple[float, float, float], parts: int, window: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        log_dir = new_log_dir(Path(name) / "log")
        writer, written = write(log_dir, steps)
        start, end, high_watermark = sorted(int(edge * writer.next_offset) for edge in edges)
        checkpoint(log_dir, {("t", 0): high_watermark})
        given_options = {
            "subscribe": "t",
            "log.dir": str(log_dir),
            "startingOffsets": f'{{"t":{{"0":{start}}}}}',
            "endingOffsets": f'{{"t":{{"0":{end}}}}}',
            "minPartitions": str(parts),
        }
        found = MpbrokerDataSource(given_options)
        reader = found.reader(found.schema())
        before, read_local.WINDOW_BYTES = read_local.WINDOW_BYTES, window
        try:
            tasks = reader.partitions()
            seen = [
                offset
                for task in tasks
                for batch in reader.read(task)
                for offset in batch["offset"].to_pylist()
            ]
        finally:
            read_local.WINDOW_BYTES = before
        assert seen == [offset for offset in written if start <= offset < end]
        assert len(tasks) <= parts
