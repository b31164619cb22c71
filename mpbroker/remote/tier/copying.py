"""Uploads waiting segments, one at a time. A partition with a damaged segment waits, and says why."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from mpbroker.ipc.counters import Counter
from mpbroker.remote.tier.backlog import Backlog, Candidate, in_turn
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.places import Key, Place, PlaceGone, told
from mpbroker.remote.tier.segment_indexes import SegmentDamaged
from mpbroker.remote.tier.topics import Topics
from mpbroker.remote.tier.uploader import Uploader
from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.transaction_index import TransactionIndexCorrupt
from shm.counters import CounterPage

# A segment that did not check out is read again after this time: it may have been the memory.
DAMAGED_RETRY_S: Final = 600.0
_DAMAGE: Final = (SegmentDamaged, CheckpointCorrupt, TransactionIndexCorrupt)
log = logging.getLogger("mpbroker.remote")


class Copying:
    """Uploads of all partitions. `give_way` is called between two segments, and may raise to give up."""

    def __init__(
        self,
        book: Book,
        uploader: Uploader,
        topics: Topics,
        counters: CounterPage,
        give_way: Callable[[], object],
    ) -> None:
        self._book = book
        self._uploader = uploader
        self._topics = topics
        self._counters = counters
        self._give_way = give_way
        self._backlog = Backlog()
        # Partitions that wait because of damage: until when, and what was logged.
        self._damaged: dict[Key, tuple[float, str]] = {}

    @property
    def problem(self) -> str:
        """Return why a partition waits, or ""."""
        return next((text for _, text in self._damaged.values()), "")

    def copy(self, places: Sequence[Place], until: float) -> bool:
        """Upload waiting segments, until this time at most; return whether all that can be uploaded is.

        Raises StoreError, Fenced, and what `give_way` raises.
        """
        backlog = self._backlog.find(places, self._book.end_with_ready)
        waiting: set[Key] = set()
        for candidate in in_turn(backlog):
            self._give_way()
            if time.monotonic() >= until:
                return False
            # Segments of a partition come into the store in their order, without a gap.
            if candidate.place.key not in waiting and not self._upload(candidate):
                waiting.add(candidate.place.key)
            self._book.commit_if_due()
        return True

    def _upload(self, candidate: Candidate) -> bool:
        """Upload a segment; return whether that succeeded."""
        place, segment = candidate
        if place.key in self._damaged and time.monotonic() < self._damaged[place.key][0]:
            return False
        self._counters.set_status(f"uploading {place.name} from offset {segment.base}")
        try:
            event = self._uploader.upload(candidate)
        except PlaceGone:
            self._backlog.forget(place.key)
            return False
        except (*_DAMAGE, OSError) as error:
            self._found_damage(candidate, error)
            return False
        self._damaged.pop(place.key, None)
        topic = (self._topics.now or {}).get(place.topic_id)
        if topic is not None:
            self._book.add_segment(event, topic)
        return topic is not None

    def _found_damage(self, candidate: Candidate, error: Exception) -> None:
        place, segment = candidate
        self._counters.add(Counter.COUNT_REMOTE_ERRORS)
        text = (
            f"{place.directory}: the segment of offset {segment.base} is not uploaded: {told(place, error)}"
        )
        if self._damaged.get(place.key, (0.0, ""))[1] != text:
            self._counters.set_last_error(text)
            log.error(
                "%s. This partition's segments stay on this disk until it is: restore the file, or stop the "
                "broker and keep what is whole with mpbroker log repair %s",
                text,
                place.directory,
            )
        self._damaged[place.key] = time.monotonic() + DAMAGED_RETRY_S, text

    def count(self, places: Sequence[Place]) -> None:
        """Count what the ledger does not have yet."""
        counters, backlog = self._counters, self._backlog.find(places, self._book.end_of)
        left = [candidate.segment for candidates in backlog for candidate in candidates]
        counters.set(Counter.COUNT_REMOTE_PENDING_SEGMENTS, len(left))
        counters.set(Counter.COUNT_REMOTE_PENDING_BYTES, sum(one.size for one in left))
        since_ms = min((one.written_ms for one in left), default=0)
        counters.set(Counter.COUNT_REMOTE_PENDING_SINCE_MS, since_ms)
