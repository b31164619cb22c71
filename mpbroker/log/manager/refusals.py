"""Reports of refused produces and unopened partitions while a disk is full or descriptors run out.

The operator is told when refusals begin, go on and end. Producers retry all the time and a topic may have
thousands of partitions, so single refusals are not logged.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.log.io.disk_errors import NO_ROOM

SAID_EVERY_S = 10.0
# Refusals are over when none came for this long although something was appended ...
OVER_AFTER_S = 5.0
# ... and each log directory has this much room: a small record may fit into the last bytes of a full
# disk. The room is looked up this often.
ROOM_BYTES, LOOK_EVERY_S = 1 << 20, 1.0
_log = logging.getLogger("mpbroker.log")


def _free_text(path: Path) -> str:
    """Return the free space at `path` as text, or the error if the disk has failed."""
    try:
        return f"{shutil.disk_usage(path).free >> 20} MiB"
    except OSError as error:
        return error.strerror or "unknown"


def room_advice(error: int, log_dirs: Sequence[Path], delete_delay_ms: int) -> str:
    """Return what the operator can do about `error`; "" if it has nothing to do with room."""
    if error in (errno.EMFILE, errno.ENFILE):
        return ". Raise the limit of open files (ulimit -n, LimitNOFILE), or use fewer partitions at once"
    if error not in NO_ROOM:
        return ""
    listed = ", ".join(f"{path} {_free_text(path)}" for path in log_dirs)
    return (
        f" (free: {listed}). Make the file system larger, delete topics or shorten their retention; what "
        f"is deleted gives its space back after file.delete.delay.ms (of topics that do not set it "
        f"{delete_delay_ms} ms)"
    )


def has_room(log_dirs: Sequence[Path]) -> bool:
    """Tell whether each log directory has room. One that cannot be read counts as having some."""
    for path in log_dirs:
        # A directory that is gone takes no bytes either.
        with suppress(OSError):
            if shutil.disk_usage(path).free < ROOM_BYTES:
                return False
    return True


class RefusedProduces:
    """The state of refusals of produces: on or off. Times are monotonic, in s."""

    def __init__(self) -> None:
        self._say_at = 0.0
        self._look_at = 0.0
        self._appended = 0
        self.is_on = False

    def is_to_be_said(self, now: float, appended_bytes: int) -> bool:
        """Note a refusal, and tell whether to log it now.

        `appended_bytes`: all bytes appended so far.
        """
        self.is_on = True
        self._look_at, self._appended = now + OVER_AFTER_S, appended_bytes
        if now < self._say_at:
            return False
        self._say_at = now + SAID_EVERY_S
        return True

    def is_over(self, now: float, appended_bytes: int, log_dirs: Sequence[Path]) -> bool:
        """Tell whether refusals have ended. Returns True once."""
        if not self.is_on or now < self._look_at or appended_bytes <= self._appended:
            return False
        self._look_at = now + LOOK_EVERY_S
        if not has_room(log_dirs):
            return False
        self.is_on = False
        self._say_at = now
        return True


class WaitingPartitions:
    """The partitions that cannot be opened or created now. The coordinator retries until they can."""

    def __init__(self, log_dirs: Sequence[Path], config: BrokerConfig) -> None:
        self._log_dirs = log_dirs
        self._delete_delay_ms = config.log_segment_delete_delay_ms
        self._numbers: dict[bytes, set[int]] = {}

    def begin(self, topic: EnsureTopic, number: int, failure: OSError) -> None:
        if topic.topic_id not in self._numbers:
            advice = room_advice(failure.errno or 0, self._log_dirs, self._delete_delay_ms)
            _log.error(
                "%s-%d, and maybe others of its topic, cannot be opened now: %s. They are tried again until "
                "they can%s",
                topic.name,
                number,
                f"{failure.filename}: {failure.strerror}" if failure.filename else failure.strerror,
                advice,
            )
        self._numbers.setdefault(topic.topic_id, set()).add(number)

    def end(self, topic: EnsureTopic, number: int) -> None:
        """Note that the partition is open now. Log it when it is the topic's last one."""
        numbers = self._numbers.get(topic.topic_id)
        if numbers is None:
            return
        numbers.discard(number)
        if not numbers:
            del self._numbers[topic.topic_id]
            _log.info("%s: there is what its partitions waited for, they are open now", topic.name)

    def forget(self, topic_id: bytes) -> None:
        self._numbers.pop(topic_id, None)
