"""Checks of the last index entries before further entries are appended (Kafka: AbstractIndex.sanityCheck).

If a flipped bit moves the last entry far above the log, the index refuses every later entry. So the last
entry has to match a batch. `odd_entry` checks this after a clean stop; `believed` finds the entries to keep
in a segment that has to be checked.
"""

from __future__ import annotations

from typing import NamedTuple

from mpbroker.storage import scan
from mpbroker.storage.index import offset_floor, sound_entries, sound_times
from mpbroker.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name


def odd_entry(
    fds: tuple[int, int, int],
    base: int,
    at: list[scan.BatchAt],
    entry: tuple[int, int, int],
    time: tuple[int, int, int],
) -> str | None:
    """Return what is wrong with the last entry of `.index` or `.timeindex`, or None. Raises OSError.

    `at`: the batch to which the last entry of `.index` points, and batches after it. If Kafka appended
    several batches at once, an entry has the position of the first batch and the last offset of the last one.
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
    """The entries of the indexes that are kept, and the batch that the last of them in `.index` points to.

    `entry`: the number of entries of `.index`, and the last one's offset and position. `time`: the number of
    entries of `.timeindex`, and the last one's timestamp and offset.
    """

    position: int
    base_offset: int
    entry: tuple[int, int, int]
    time: tuple[int, int, int]


def believed(fds: tuple[int, int, int], base: int, below: int, size: int) -> Believed | None:
    """Find the index entries that can be kept: the sound ones whose offsets are less than `below`.

    Return None if there are none, or if the last one matches no batch. `below` is the recovery point, or the
    offset of a snapshot: the indexes were synced up to there. Raises OSError.
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
    """Return whether `timestamp` is the largest timestamp of the batch that contains `offset`."""
    if at and offset < at[0].base_offset:
        start = offset_floor(fds[1], base, offset)[1]
        found = scan.find_offset(fds[0], start, at[0].position, offset)
    else:
        found = next((one for one in at if one.last_offset >= offset), None)
    return found is not None and found.base_offset <= offset and found.max_timestamp == timestamp
