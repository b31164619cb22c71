"""Which partitions have their files open: those that are appended to, and of thousands not all at once.

A partition is opened at rest, without its files, and wakes with its first append. When too many
are awake, those that were not appended to since the last look rest again, if nothing of them waits for a
sync: a file with unsynced bytes is never closed. What waits in a commit journal alone is asked to be synced
then, and until there are fewer again commit rounds go around the journals: what they have synced can rest.
(Kafka holds every segment of every partition open.)

What indexes have is not synced when they are closed, and without group commit neither is the segment: the
kernel keeps it, and tells whoever syncs it later if that failed.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import KeysView

from mpbroker.log.append.turn import Turn
from mpbroker.log.append.turn_partitions import attach, detach
from mpbroker.log.directories.journal_set import crowd_journals
from mpbroker.log.io.io_thread import Helper
from mpbroker.log.manager.segment_preparation import Preparing
from mpbroker.log.partition.partition_log import PartitionLog

FILES_OF_ONE = 3
# Rings, journals, what is replayed, rolled, prepared or synced behind the journals.
FILES_OF_OTHERS = 1024
# At a time: each may be one that has to stay awake.
LOOKED_AT_ONCE = 64
# Of the most: so few must be awake before journals are used again.
FEW_SHARE = 0.75


def most_awake(file_limit: int) -> int:
    others = min(FILES_OF_OTHERS, file_limit // 2)
    return max(16, (file_limit - others) // FILES_OF_ONE)


class Awake:
    """When there are too many, what the journals alone hold is to be synced."""

    def __init__(self, turn: Turn, helper: Helper) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = most_awake(soft)
        self.preparing = Preparing(helper)
        self._turn = turn
        self._is_crowded = False
        # The log end of each when it was looked at last; who was looked at longest ago comes first.
        self._logs: OrderedDict[PartitionLog, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def logs(self) -> KeysView[PartitionLog]:
        return self._logs.keys()

    def begin(self, log: PartitionLog) -> None:
        """It has its slot: from now on the turn appends to it."""
        attach(self._turn, log.state, log.topic)
        if log.state.fd >= 0:
            self.note(log)

    def note(self, log: PartitionLog) -> None:
        """It is about to open its files, or has just opened them."""
        if len(self._logs) >= self.most:
            self._send_to_rest()
        self._logs[log] = log.state.log_end

    def forget(self, log: PartitionLog) -> None:
        """Its files are going to be closed."""
        self._logs.pop(log, None)
        self.preparing.forget(log)

    def end(self, log: PartitionLog) -> None:
        """Its slot waits for another partition."""
        self.forget(log)
        detach(self._turn, log.state)

    def _send_to_rest(self) -> None:
        for _ in range(min(LOOKED_AT_ONCE, len(self._logs))):
            log, seen_end = self._logs.popitem(last=False)
            if log.state.fd < 0:
                continue
            if log.state.log_end == seen_end and log.state.can_rest:
                self.preparing.forget(log)
                log.close_files()
                continue
            self._logs[log] = log.state.log_end
        if len(self._logs) >= self.most:
            self._is_crowded = True
            crowd_journals(self._turn, True)

    def look_at_segments(self) -> None:
        """Those that fill theirs get the next one prepared."""
        self.preparing.look(self._logs)

    def ease(self) -> None:
        """To be called from time to time."""
        self.preparing.take_in()
        if self._is_crowded:
            self._send_to_rest()
            if len(self._logs) < self.most * FEW_SHARE:
                self._is_crowded = False
                crowd_journals(self._turn, False)
