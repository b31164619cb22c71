"""Tells what the log directories hold when a standby starts, and makes room for a mirror in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
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

NONCE_DIGITS: Final = 8
# They belong to whoever uses the directory, an owner or a standby.
_STAY: Final = NOT_PARTITIONS | {LOCK}


def is_mirror(log_dirs: Sequence[Path]) -> bool:
    """Return whether the directories are a standby's, or empty, so that a mirror may be made in them."""
    if any((one / META_PROPERTIES).exists() for one in log_dirs):
        return False
    return (log_dirs[0] / STANDBY_FACE).is_dir() or not any(any(_contents(one)) for one in log_dirs)


def has_handed_over(store: ObjectStore, owner: Owner) -> bool:
    """Return whether, by its last entry, the store has all that a former owner had. Raises StoreError."""
    try:
        last = decode_entry(owner.last_seq, store.get(entry_name(owner.last_seq)))
    except (ObjectMissing, LedgerDamaged):
        return False
    return last.header.owner == owner.nonce and any(isinstance(one, Released) for one in last.events)


def become_mirror(log_dirs: Sequence[Path]) -> None:
    """Make a former owner's directories a mirror, because the store has all of them. Raises OSError.

    Nothing of them has to be downloaded again. The owner's file is removed last: so this may be killed
    anywhere, and the next start does it again.
    """
    (log_dirs[0] / STANDBY_FACE).mkdir(0o750, exist_ok=True)
    for log_dir in log_dirs:
        with suppress(FileNotFoundError):
            (log_dir / META_PROPERTIES).rename(log_dir / unfinished(META_PROPERTIES))
        fsync_directory(log_dir)
    (log_dirs[0] / REMOTE_OWNER).unlink()


def set_aside(log_dirs: Sequence[Path], owner: Owner) -> list[Path]:
    """Move all that a former owner has in each directory into one below it; return these. Raises OSError.

    Their name has the owner's: another ledger may have had the same generation. meta.properties is moved
    first, so that no broker starts on what is left. The owner's file is moved last: so this may be killed
    anywhere, and the next start goes on.
    """
    targets, name = [], _name_aside(log_dirs[0] / FENCED, owner)
    for log_dir in reversed(log_dirs):
        target = log_dir / FENCED / name
        target.mkdir(0o750, parents=True, exist_ok=True)
        for path in sorted(_contents(log_dir), key=_turn):
            path.rename(target / path.name)
        for one in (target, target.parent, log_dir):
            fsync_directory(one)
        targets.append(target)
    return targets[::-1]


def _name_aside(fenced: Path, owner: Owner) -> str:
    """Return a name that no finished move has taken. A copy of the disk may have been moved before."""
    own = f"{owner.generation}-{owner.nonce[:NONCE_DIGITS]}"
    names = chain([own], (f"{own}-{number}" for number in count(2)))
    return next(name for name in names if not (fenced / name / REMOTE_OWNER).exists())


def _turn(path: Path) -> tuple[bool, bool, str]:
    """Return the sort key of a file: meta.properties is the first one, the owner's file the last one."""
    return path.name == REMOTE_OWNER, path.name != META_PROPERTIES, path.name


def _contents(log_dir: Path) -> Iterator[Path]:
    """Yield what an owner or a mirror has in a log directory."""
    return (one for one in log_dir.iterdir() if one.name not in _STAY)
