"""Whether the last entries of the active segment's indexes are right (Kafka: AbstractIndex.sanityCheck).

All others are to be appended behind them: of an entry with a flipped bit, far above what is in the log, the
index would refuse every later one.
"""

from __future__ import annotations

from mpbroker.log import scan
from mpbroker.log.index import offset_floor
from mpbroker.log.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name


def odd_entry(
    fds: tuple[int, int, int],
    base: int,
    at: list[scan.BatchAt],
    entry: tuple[int, int, int],
    time: tuple[int, int, int],
) -> str | None:
    """What is wrong with the last entry of either index, behind which all others are to be appended. `at`:
    the batches from the one on that the last entry of `.index` names.

    Where Kafka appended several batches at once its entry names where the first begins and the last ends.
    """
    entries, offset, position = entry
    if entries and not (at and at[0].position == position and any(one.last_offset == offset for one in at)):
        name = segment_name(base, INDEX_SUFFIX)
        return f"{name}: the last of {entries} entries, offset {offset} at byte {position}, is of no batch"
    times, timestamp, offset = time
    if times and not is_time_of(fds, base, at, timestamp, offset):
        name = segment_name(base, TIME_INDEX_SUFFIX)
        return f"{name}: the last of {times} entries, time {timestamp} up to offset {offset}, is of no batch"
    return None


def is_time_of(
    fds: tuple[int, int, int], base: int, at: list[scan.BatchAt], timestamp: int, offset: int
) -> bool:
    """Whether this is the largest timestamp of the batch with that offset, one of `at` or before them."""
    if at and offset < at[0].base_offset:
        start = offset_floor(fds[1], base, offset)[1]
        found = scan.find_offset(fds[0], start, at[0].position, offset)
    else:
        found = next((one for one in at if one.last_offset >= offset), None)
    return found is not None and found.base_offset <= offset and found.max_timestamp == timestamp
