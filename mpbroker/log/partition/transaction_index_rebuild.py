"""Check and rebuild a segment's `.txnindex`, which has no checksum, from the segment's records.

The producer snapshot before the segment and the segment's batches determine every entry. With a wrong entry a
read_committed consumer gets aborted records, or misses committed ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

from mpbroker.log.io.background_io import drop, no_read_ahead
from mpbroker.log.partition import batch_checker
from mpbroker.log.partition.state import PartitionState
from mpbroker.storage import scan, transaction_index
from mpbroker.storage.checkpoints import opened
from mpbroker.storage.names import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from mpbroker.storage.residency import resident
from mpbroker.storage.strict_stat import is_there

# The bytes checked at a time.
PIECE_BYTES = 1 << 20

Expected = list[transaction_index.AbortedTransaction] | None


def expected(directory: Path, base: int, *, leaves_cache: bool = False) -> Generator[int, None, Expected]:
    """Return the entries that the `.txnindex` has to have; yield the number of bytes read in each step.

    Returns None if they are unknown: without a snapshot, with damaged batches, and after compaction, which
    removes records but not entries. `leaves_cache` drops the pages that this call reads into the page
    cache, and turns off read-ahead. Raises OSError.
    """
    producers = _producers_before(directory, base)
    if producers is None:
        return None
    with opened(directory / segment_name(base)) as fd:
        if leaves_cache:
            no_read_ahead(fd)
        size = os.fstat(fd).st_size
        state = PartitionState()
        state.open_segment(base, fd, -1, -1, 0)
        state.replace_producers(producers)
        found: list[transaction_index.AbortedTransaction] = []
        position, next_offset = 0, base
        while position < size:
            # The check reads beyond its current batch.
            count = min(2 * PIECE_BYTES, size - position)
            stays = not leaves_cache or resident(fd, position, count)
            checked = batch_checker.check_batches(
                fd, position, size, next_offset, state, False, base, PIECE_BYTES
            )
            has_gaps = not checked.reason and _has_gaps(fd, position, checked.valid_bytes, next_offset)
            if not stays:
                drop(fd, position, max(checked.valid_bytes - position, count))
            if checked.reason or has_gaps:
                return None
            found += [transaction_index.AbortedTransaction(*entry) for entry in checked.aborted]
            yield checked.valid_bytes - position
            position, next_offset = checked.valid_bytes, checked.next_offset
        return found


def _producers_before(directory: Path, base: int) -> Producers | None:
    producers = Producers()
    if base == 0:
        return producers
    try:
        producers.load((directory / segment_name(base, SNAPSHOT_SUFFIX)).read_bytes())
    except (FileNotFoundError, SnapshotCorrupt):
        return None
    return producers


def _has_gaps(fd: int, position: int, end: int, next_offset: int) -> bool:
    for batch in scan.batches(fd, position, end):
        if batch.base_offset != next_offset:
            return True
        next_offset = batch.last_offset + 1
    return False


def remake(directory: Path, base: int, count: Callable[[int], None]) -> bool:
    """Rebuild a missing `.txnindex`; return whether it exists now.

    `count` is called with the numbers of bytes read. Raises OSError.
    """
    path = directory / segment_name(base, TXN_INDEX_SUFFIX)
    if is_there(path):
        return True
    reading = expected(directory, base)
    while True:
        try:
            count(next(reading))
        except StopIteration as end:
            transaction_index.replace_aborted(path, end.value or [])
            return bool(end.value)


def problem(directory: Path, base: int, wanted: Expected) -> str:
    """Return the fault of the segment's `.txnindex`; "" if it is sound or unknown. Raises OSError."""
    try:
        found = transaction_index.read_aborted(directory / segment_name(base, TXN_INDEX_SUFFIX))
    except FileNotFoundError:
        found = []
    except transaction_index.TransactionIndexCorrupt as error:
        return str(error)
    if wanted is None or found == wanted:
        return ""
    odd = min(set(found) ^ set(wanted), key=lambda entry: entry.last_offset)
    return f"its entry of the transaction that was aborted at offset {odd.last_offset} contradicts the log"
