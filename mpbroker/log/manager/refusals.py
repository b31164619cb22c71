"""Reports of refused produce requests and unopened partitions while a disk is full or descriptors run out.

A line is logged when refusals begin and when they end, and now and then in between. Producers retry all
the time and a topic may have thousands of partitions, so single refusals are not logged.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.ipc.disk_problems import ROOM_BYTES, mebibytes, room_advice
from mpbroker.storage.disk_errors import NO_ROOM

LOG_EVERY_S = 10.0
# Refusals are over when none came for this long and no log directory is full. Whether something was appended
# does not count, since a broker that is not ready gets nothing. The room is looked up this often.
OVER_AFTER_S = 5.0
CHECK_EVERY_S = 1.0
_log = logging.getLogger("mpbroker.log")


def room_of(log_dirs: Iterable[Path]) -> list[tuple[str, str]]:
    """Return each directory with its free space as text, or the error if the disk has failed."""
    return [(str(path), _free_text(path)) for path in log_dirs]


def _free_text(path: Path) -> str:
    try:
        return mebibytes(shutil.disk_usage(path).free)
    except OSError as error:
        return error.strerror or "unknown"


def without_room(log_dirs: Iterable[Path]) -> list[Path]:
    """Return the log directories without room, except those whose room is unknown because of an error."""
    found = []
    for path in log_dirs:
        # A missing directory takes no bytes either.
        with suppress(OSError):
            if shutil.disk_usage(path).free < ROOM_BYTES:
                found.append(path)
    return found


class RefusedProduces:
    """Decides when to log refusals and their end. `is_on`: refusals continue. `now`: monotonic time in s."""

    def __init__(self) -> None:
        self._log_at = 0.0
        self._check_at = 0.0
        self.is_on = False

    def note(self, now: float) -> None:
        """Note a refusal: of produce requests, or of opening or creating a partition."""
        self.is_on = True
        self._check_at = now + OVER_AFTER_S

    def must_log(self, now: float) -> bool:
        """Note a refusal, and return whether to log it now."""
        self.note(now)
        if now < self._log_at:
            return False
        self._log_at = now + LOG_EVERY_S
        return True

    def is_over(self, now: float, log_dirs: Sequence[Path]) -> bool:
        """Return True, once, when refusals have ended."""
        if not self.is_on or now < self._check_at:
            return False
        self._check_at = now + CHECK_EVERY_S
        if without_room(log_dirs):
            return False
        self.is_on = False
        self._log_at = now
        return True


class WaitingPartitions:
    """The partitions that cannot be opened or created now. The coordinator retries them."""

    def __init__(self, log_dirs: Sequence[Path], config: BrokerConfig) -> None:
        self._log_dirs = log_dirs
        self._delete_delay_ms = config.log_segment_delete_delay_ms
        self._numbers: dict[bytes, set[int]] = {}
        # The errno of the last partition that found no room, 0 if it was taken.
        self._no_room = 0

    @property
    def count(self) -> int:
        return sum(map(len, self._numbers.values()))

    def begin(self, topic: EnsureTopic, number: int, failure: OSError) -> None:
        if topic.topic_id not in self._numbers:
            advice = room_advice(failure.errno or 0, room_of(self._log_dirs), self._delete_delay_ms)
            _log.error(
                "%s-%d, and maybe others of its topic, cannot be opened now: %s. They are tried again until "
                "they can%s",
                topic.name,
                number,
                f"{failure.filename}: {failure.strerror}" if failure.filename else failure.strerror,
                advice,
            )
        self._numbers.setdefault(topic.topic_id, set()).add(number)
        if failure.errno in NO_ROOM:
            self._no_room = failure.errno

    def take_no_room(self) -> int:
        """Return the errno of the last failure for lack of room since the previous call; 0 if none."""
        error, self._no_room = self._no_room, 0
        return error

    def end(self, topic: EnsureTopic, number: int) -> None:
        """Note that the partition is open now. If no partition of the topic waits any more, log this."""
        numbers = self._numbers.get(topic.topic_id)
        if numbers is None:
            return
        numbers.discard(number)
        if not numbers:
            del self._numbers[topic.topic_id]
            _log.info("%s: its partitions that could not be opened are open now", topic.name)

    def forget(self, topic_id: bytes) -> None:
        self._numbers.pop(topic_id, None)
