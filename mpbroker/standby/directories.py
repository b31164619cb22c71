"""What the log directories of a standby hold when it starts, and where those of a former owner go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpbroker.ipc.pointer import LOCK
from mpbroker.remote.ledger.entries import LedgerDamaged, decode_entry, entry_name
from mpbroker.remote.ledger.events import Released
from mpbroker.remote.ledger.owner import Owner
from mpbroker.remote.restore.mirror import unfinished
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore
from mpbroker.storage.checkpoints import fsync_directory
from mpbroker.storage.names import FENCED, META_PROPERTIES, NOT_PARTITIONS, REMOTE_OWNER, STANDBY_FACE

# They are of whoever uses the directory.
_STAY: Final = NOT_PARTITIONS | {LOCK}


def is_mirror(log_dirs: Sequence[Path]) -> bool:
    """Return whether the directories are a standby's, or empty, so that a mirror may be made in them."""
    if any((one / META_PROPERTIES).exists() for one in log_dirs):
        return False
    return (log_dirs[0] / STANDBY_FACE).is_dir() or not any(any(_contents(one)) for one in log_dirs)


def has_handed_over(store: ObjectStore, owner: Owner) -> bool:
    """Return whether a former owner's last entry says that the store has all of it. Raises StoreError."""
    try:
        last = decode_entry(owner.last_seq, store.get(entry_name(owner.last_seq)))
    except (ObjectMissing, LedgerDamaged):
        return False
    return last.header.owner == owner.nonce and any(isinstance(one, Released) for one in last.events)


def become_mirror(log_dirs: Sequence[Path]) -> None:
    """Give up directories of which the store has all: what they have need not be downloaded. Raises OSError.

    It may be killed anywhere: the owner's file goes last.
    """
    (log_dirs[0] / STANDBY_FACE).mkdir(0o750, exist_ok=True)
    for log_dir in log_dirs:
        with suppress(FileNotFoundError):
            (log_dir / META_PROPERTIES).rename(log_dir / unfinished(META_PROPERTIES))
        fsync_directory(log_dir)
    (log_dirs[0] / REMOTE_OWNER).unlink()


def set_aside(log_dirs: Sequence[Path], generation: int) -> list[Path]:
    """Move all that a former owner has into a directory below each; return these. Raises OSError.

    It may be killed anywhere: no broker starts on what is left, and the owner's file, which says that it is
    to be moved, goes last.
    """
    targets = []
    for log_dir in reversed(log_dirs):
        target = log_dir / FENCED / str(generation)
        target.mkdir(0o750, parents=True, exist_ok=True)
        for path in sorted(_contents(log_dir), key=_turn):
            path.rename(target / path.name)
        for one in (target, target.parent, log_dir):
            fsync_directory(one)
        targets.append(target)
    return targets[::-1]


def _turn(path: Path) -> tuple[bool, bool, str]:
    return path.name == REMOTE_OWNER, path.name != META_PROPERTIES, path.name


def _contents(log_dir: Path) -> Iterator[Path]:
    return (one for one in log_dir.iterdir() if one.name not in _STAY)
