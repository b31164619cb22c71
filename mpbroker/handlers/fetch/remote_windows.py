"""Windows of remote segments: those that the tier is known to have in its cache, with their open files.

A handler asks the tier for the window of an offset, and gets its directory when it is in the cache. It reads
the window as a partition's directory of one segment. What it knows of a window ends after `KNOWN_MS`, so that
the tier hears which windows are in use, and when the files are gone. (Kafka: RemoteLogManager.read.)
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.handlers.fetch.remote_files import RemoteFiles
from mpbroker.handlers.requests.purgatory import NEVER_MS
from mpbroker.ipc import calls
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import Partition
from mpbroker.protocol.errors import ErrorCode
from mpbroker.storage.names import segment_name
from mpbroker.storage.reader import Bound, PartitionReader
from mpbroker.storage.remote_segments import RemoteSegments
from shm.clock import monotonic_ms
from shm.procfs import descriptors_left

log = logging.getLogger("mpbroker.handlers")

# Windows whose files may be open: three each. One for so many descriptors that this process may have.
WINDOWS_MAX: Final = 64
DESCRIPTORS_EACH: Final = 128
KNOWN_MS: Final = 10_000
# After a failure a partition's window is not asked for again for so long.
PAUSE_MS: Final = 1_000
# Answers of a tier that has died with the question, has not opened the store or does not know the partition.
NOT_YET: Final = (
    *(ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT),
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
# So many of them, one after the other, are a failure.
NOT_YET_MAX: Final = 10

Then = Callable[[], None]


class NotYet(Exception):
    """Raised when the tier could not answer: it is starting, or was restarted. Ask again."""


class RemoteUnavailable(Exception):
    """Raised when the object store, or the tier, has not answered in several tries. It has been logged."""


class Place(NamedTuple):
    """An offset of a partition from which remote records are wanted, at this time or later."""

    topic: str
    image: PartitionImage
    topic_id: bytes
    partition: int
    offset: int
    timestamp_ms: int = -1


class _Question(NamedTuple):
    topic_id: bytes
    partition: int
    offset: int
    timestamp_ms: int


class RemoteWindow:
    """A window with all records at offsets [first, end). `base` names its files, `bound` is its end."""

    def __init__(self, place: Place, ready: calls.RemoteWindowReady, until_ms: int) -> None:
        """Make a window of the tier's answer. Raises FileNotFoundError if the cache has dropped it."""
        self.topic_id = place.topic_id
        self.partition = place.partition
        # There are no records between the offset that was asked for and a base above it.
        self.first = ready.base if place.timestamp_ms >= 0 else min(place.offset, ready.base)
        self.base = ready.base
        self.end = ready.end
        self.path = Path(ready.path)
        self.until_ms = until_ms
        self.bound = Bound(self.end, self.base, (self.path / segment_name(self.base)).stat().st_size)
        self.reader = PartitionReader(self.path)


class RemoteWindows:
    """The windows that a handler reads, of segments in `files`. `tier` is None if tiered storage is off."""

    def __init__(
        self, tier: PatientClient | None, files: RemoteFiles, now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self.tier = tier
        self._files = files
        self._now_ms = now_ms
        self._windows_max = max(1, min(WINDOWS_MAX, descriptors_left() // DESCRIPTORS_EACH))
        # By directory; used longest ago first.
        self._windows: OrderedDict[Path, RemoteWindow] = OrderedDict()
        self._asking: dict[_Question, dict[Then, None]] = {}
        # Until when a window that could not be had is not asked for, and the error if that is one.
        self._paused: OrderedDict[_Question, tuple[int, RemoteUnavailable | None]] = OrderedDict()
        # By partition: how many answers of NOT_YET came since a window did. Larger: the failure was logged.
        self._failures: dict[tuple[bytes, int], int] = {}

    def __len__(self) -> int:
        """Return the number of windows whose files may be open."""
        return len(self._windows)

    def segments(self, image: PartitionImage, directory: Path) -> RemoteSegments:
        """Return what the object store has of a partition. Raises CheckpointCorrupt, OSError."""
        return self._files.get(image, directory) if self.tier is not None else RemoteSegments()

    def find(self, place: Place, then: Then) -> RemoteWindow | None:
        """Return the window of an offset, or ask for it, return None and call `then` when that is answered.

        `then` must call `find` again. Raises RemoteUnavailable if the window cannot be had.
        """
        found = self._known(place) if place.timestamp_ms < 0 else None
        if found is None:
            self._ask(place, then)
        return found

    def _known(self, place: Place) -> RemoteWindow | None:
        now_ms = self._now_ms()
        for window in self._windows.values():
            if (
                window.first <= place.offset < window.end
                and window.partition == place.partition
                and window.topic_id == place.topic_id
                and now_ms < window.until_ms
            ):
                self._windows.move_to_end(window.path)
                return window
        return None

    def _ask(self, place: Place, then: Then) -> None:
        question = _Question(place.topic_id, place.partition, place.offset, place.timestamp_ms)
        until_ms, error = self._paused.get(question, (0, None))
        if self._now_ms() < until_ms:
            if error is not None:
                raise error
            return
        if question not in self._asking:
            self._asking[question] = {}
            self.call(place, lambda answer: self._answered(place, question, answer))
        if question in self._asking:
            self._asking[question][then] = None
        elif (error := self._paused.get(question, (0, None))[1]) is not None:
            # The call could not be sent.
            raise error

    def call(self, place: Place, then: Callable[[calls.Message], None], deadline_ms: int = NEVER_MS) -> None:
        """Ask the tier for a window; `then` gets its answer, of which `open` makes a window."""
        assert self.tier is not None, "without a tier there are no remote segments"
        message = calls.RemoteWindow(
            place.image.slot, place.image.slot_generation, place.offset, place.timestamp_ms
        )
        self.tier.call(message, then, deadline_ms=deadline_ms)

    def _answered(self, place: Place, question: _Question, answer: calls.Message) -> None:
        try:
            self.open(place, answer)
            self._paused.pop(question, None)
        except RemoteUnavailable as error:
            self._pause(question, error)
        except NotYet:
            assert isinstance(answer, calls.Failed)
            if answer.error != ErrorCode.NOT_COORDINATOR:
                self._pause(question, None)
            # Else the tier has died, and the next call waits for its successor.
        except FileNotFoundError:
            # The window was removed from the cache meanwhile: it is asked for again.
            self._paused.pop(question, None)
        for then in self._asking.pop(question):
            then()

    def _pause(self, question: _Question, error: RemoteUnavailable | None) -> None:
        self._paused[question] = self._now_ms() + PAUSE_MS, error
        self._paused.move_to_end(question)
        if len(self._paused) > WINDOWS_MAX:
            self._paused.popitem(last=False)

    def open(self, place: Place, answer: calls.Message) -> RemoteWindow:
        """Return the window of an answer to `call`.

        Raises NotYet, FileNotFoundError if it is not in the cache any more, or RemoteUnavailable, which is
        logged.
        """
        partition = place.topic_id, place.partition
        if isinstance(answer, calls.RemoteWindowReady) and answer.end <= place.offset:
            # A bug of the tier. Without this the same question would follow at once, for ever.
            text = f"the tier's window {answer.path} ends before it; restart the broker and report this"
            answer = calls.Failed(ErrorCode.KAFKA_STORAGE_ERROR, text)
        if isinstance(answer, calls.RemoteWindowReady):
            self._failures.pop(partition, None)
            return self._add(RemoteWindow(place, answer, self._now_ms() + KNOWN_MS))
        assert isinstance(answer, calls.Failed)
        failures = self._failures.setdefault(partition, 0)
        if answer.error in NOT_YET and failures < NOT_YET_MAX:
            self._failures[partition] = failures + 1
            raise NotYet
        if failures <= NOT_YET_MAX:
            self._failures[partition] = NOT_YET_MAX + 1
            name = f"{place.topic}-{place.partition}"
            log.error("%s cannot be read at offset %d: %s", name, place.offset, answer.message)
        raise RemoteUnavailable(answer.message)

    def _add(self, window: RemoteWindow) -> RemoteWindow:
        known = self._windows.pop(window.path, None)
        if known is not None:
            # With its open files, unless they are of a window that was removed meanwhile.
            if not known.reader.has_deleted():
                window.reader = known.reader
            else:
                known.reader.close()
            window.first = min(window.first, known.first)
        self._windows[window.path] = window
        if len(self._windows) > self._windows_max:
            self._drop(next(iter(self._windows)))
        return window

    def forget(self, now: Partition) -> None:
        """Forget the windows of a partition: one of its files was found to be gone."""
        for path, window in list(self._windows.items()):
            if (window.topic_id, window.partition) == (now.topic_id, now.partition):
                self._drop(path)

    def forget_deleted(self) -> None:
        """Close the files of windows that were removed from the cache, whose disk space they keep."""
        for path, window in list(self._windows.items()):
            if window.reader.has_deleted():
                self._drop(path)

    def _drop(self, path: Path) -> None:
        self._windows.pop(path).reader.close()
