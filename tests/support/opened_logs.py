"""What a log that was opened again holds."""

from __future__ import annotations

from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage.reader import Bound, PartitionReader
from tests.support.record_reading import iterate_records


def offsets_in(log: PartitionLog) -> list[int]:
    """Everything up to the log end, through the reader."""
    bound = Bound(log.state.log_end, log.state.segment_base, log.state.size)
    reader = PartitionReader(log.directory)
    offset, found = log.log_start, []
    while (piece := reader.fetch_slice(offset, 1 << 20, bound)) is not None:
        found += [record.offset for record in iterate_records(reader.read(piece)) if record.offset >= offset]
        offset = found[-1] + 1
    reader.close()
    return found
