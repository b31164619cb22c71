"""Validation of the leader epochs in a log's batches against `leader-epoch-checkpoint`.

(Kafka: LogSegment.recover, LeaderEpochFileCache.) No checksum covers epochs in either place. If some batch
agrees with the checkpoint, the checkpoint is right: a batch that differs is damaged, unless it begins an
epoch above all known epochs, as when a broker died before it had recorded the epoch. If no batch agrees, or
the checkpoint cannot be read, the checkpoint is rebuilt from the batches. Later appends get the checkpoint's
last epoch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from mpbroker.config.integers import LONG_MAX
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs
from mpbroker.storage.leader_epochs import NO_EPOCH, Epochs, epoch_of
from mpbroker.storage.names import LEADER_EPOCHS, segment_name
from mpbroker.storage.segments import segments_of

# (epoch, offset) of batches in log order: at least of those whose epoch differs from the batch before.
Seen = Sequence[tuple[int, int]]
_log = logging.getLogger("mpbroker.log")


class WrongEpoch(Exception):
    """Raised when the batch at `offset` has an impossible epoch."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


def stored_epochs(directory: str) -> Epochs | None:
    """Read the epochs of the checkpoint; None if it is corrupt or out of order. Raises OSError."""
    try:
        epochs = read_epochs(directory)
    except CheckpointCorrupt as problem:
        _log.warning("%s; it is rebuilt from the leader epochs of the batches", problem)
        return None
    if not _is_ascending(epochs):
        _log.warning(
            "%s/%s: its epochs are out of order; it is rebuilt from those of the batches",
            directory,
            LEADER_EPOCHS,
        )
        return None
    return epochs


def settled(directory: str, bases: Sequence[int], stored: Epochs | None, seen: Seen, durable: int) -> Epochs:
    """Return the epochs of a log, given those of the checkpoint (`stored`) and of checked batches (`seen`).

    A batch that begins at or after `durable` may add an epoch to those of the checkpoint. The epoch of an
    earlier batch must be in the checkpoint. Raises WrongEpoch, OSError.
    """
    # If none was seen the last segment has no batch.
    seen = seen or list(_last_in(directory, bases[:-1]))
    odd = None
    if stored is not None:
        epochs, odd = _continued(stored, seen, durable)
        if odd is None:
            return epochs
    everywhere = list(_all_in(directory, bases))
    if odd is not None and any(epoch_of(stored or (), offset) == epoch for epoch, offset in everywhere):
        wanted = epoch_of(stored or (), odd[1])
        raise WrongEpoch(odd[1], f"its leader epoch is {odd[0]}, and by {LEADER_EPOCHS} it is {wanted}")
    for (before, _), (after, offset) in pairwise(everywhere):
        if after < before:
            raise WrongEpoch(offset, f"its leader epoch is {after}, after batches of epoch {before}")
    if odd is not None:
        _log.warning(
            "%s/%s is rebuilt: no batch is of its epochs; at offset %d it is %d",
            directory,
            LEADER_EPOCHS,
            odd[1],
            odd[0],
        )
    return everywhere


def are_refuted(directory: Path, stored: Epochs) -> bool:
    """Return whether a batch after the start of the last `stored` epoch has a lower epoch. Raises OSError."""
    if not stored:
        return False
    latest, start = stored[-1]
    found = _all_in(str(directory), segments_of(directory))
    return any(epoch < latest for epoch, offset in found if offset >= start)


def _is_ascending(epochs: Epochs) -> bool:
    before, least = NO_EPOCH, 0
    for epoch, start in epochs:
        if epoch <= before or start < least:
            return False
        before, least = epoch, start
    return True


def _continued(stored: Epochs, seen: Seen, durable: int) -> tuple[Epochs, tuple[int, int] | None]:
    """Return (`stored` with the epochs that batches add, the first batch that contradicts them or None).

    An epoch that is to begin where the log ends (LONG_MAX, see `remote.restore.files`) may have begun since:
    then the first batch that has it says where.
    """
    epochs = [one for one in stored if one[1] < LONG_MAX]
    for epoch, offset in seen:
        wanted = epoch_of(epochs, offset)
        latest = epochs[-1][0] if epochs else NO_EPOCH
        if epoch == wanted or (wanted == NO_EPOCH and stored):
            continue
        if epoch <= latest or wanted != latest or offset < durable:
            return epochs, (epoch, offset)
        epochs.append((epoch, offset))
    latest = epochs[-1][0] if epochs else NO_EPOCH
    return [*epochs, *(one for one in stored if one[1] == LONG_MAX and one[0] > latest)], None


def _all_in(directory: str, bases: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (epoch, offset) of each batch whose epoch differs from the batch before. Raises OSError."""
    before = NO_EPOCH
    for base in bases:
        for epoch, offset in _epochs_in(directory, base):
            if epoch != before:
                before = epoch
                yield epoch, offset


def _last_in(directory: str, bases: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (epoch, offset) of the first batch of the last segment that has batches. Raises OSError."""
    for base in reversed(bases):
        found = _epochs_in(directory, base, first_only=True)
        if found:
            yield found[0]
            return


def _epochs_in(directory: str, base: int, *, first_only: bool = False) -> list[tuple[int, int]]:
    try:
        fd = os.open(f"{directory}/{segment_name(base)}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # The segment followed a torn tail.
        return []
    try:
        size = os.fstat(fd).st_size
        if not first_only:
            return scan.epochs_in(fd, 0, size)
        first = scan.find_offset(fd, 0, size, base)
        return [(first.leader_epoch, first.base_offset)] if first and first.leader_epoch >= 0 else []
    finally:
        os.close(fd)
