"""Behind which entries of a segment's indexes others may be appended (Kafka: AbstractIndex.sanityCheck).

Of an entry with a flipped bit, far above what is in the log, the index would refuse every later one. So the
last one has to be of a batch: `odd_entry` says whether it is after a clean stop, `believed` up to where the
indexes of a segment that is to be checked are kept.
"""

from __future__ import annotations

from typing import NamedTuple

from mpbroker.log.format import scan
from mpbroker.log.format.index import offset_floor, sound_entries, sound_times
from mpbroker.log.format.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name


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


class Believed(NamedTuple):
    """The batch that the last entry of `.index` is of begins at `position`. `entry`: (entries, offset,
    position), `time`: (entries, timestamp, offset) of the last ones that are kept.
    """

    position: int
    base_offset: int
    entry: tuple[int, int, int]
    time: tuple[int, int, int]


def believed(fds: tuple[int, int, int], base: int, below: int, size: int) -> Believed | None:
    """The entries below that offset, up to which the indexes were synced: a recovery point, or a snapshot,
    before which they are. None: nothing of them, if there are none, or the last one is of no batch.
    """
    entries, offset, position = sound_entries(fds[1], base, below, size)
    at = scan.find_offset(fds[0], position, size, offset) if entries else None
    if at is None or (at.position, at.last_offset) != (position, offset):
        return None
    times, timestamp, latest = sound_times(fds[2], base, offset)
    if times and not is_time_of(fds, base, [at], timestamp, latest):
        return None
    time = (times, timestamp, latest if times else base)
    return Believed(position, at.base_offset, (entries, offset, position), time)


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
