"""Writes the log directories of a cut."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from mpbroker.config.integers import LONG_MAX
from mpbroker.protocol.uuids import uuid_text
from mpbroker.remote.ledger.state import segments_file
from mpbroker.remote.restore.mirror import Mirror, place, unfinished
from mpbroker.remote.restore.plan import Plan
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage.checkpoints import (
    fsync_directory,
    read_epochs,
    topic_id_if_any,
    write_epochs,
    write_whole,
)
from mpbroker.storage.names import META_PROPERTIES
from mpbroker.storage.remote_segments import write_remote_segments


def write_files(
    store: ObjectStore, plan: Plan, log_dirs: Sequence[Path], seen: Callable[[int], object]
) -> None:
    """Write all files but meta.properties: no broker starts on what is not finished.

    The directories exist, and are empty. `seen(count)` is called with bytes downloaded. Raises StoreError,
    OSError.
    """
    Mirror(store, log_dirs, seen).apply(plan.manifest)
    write_remote_files(plan, log_dirs)


def write_remote_files(plan: Plan, log_dirs: Sequence[Path]) -> None:
    """Write which segments the store has of each partition. Raises OSError.

    A directory may be gone, or be another topic's, made under the name of one that was deleted since the cut.
    """
    for path, segments in plan.segments.items():
        directory = place(log_dirs, path)
        if segments and directory.is_dir() and topic_id_if_any(directory) == segments[0].topic_id:
            write_remote_segments(directory, segments_file(segments))


def begin_epochs(plan: Plan, log_dirs: Sequence[Path]) -> None:
    """Have every partition begin a leader epoch where its log ends, when it is opened. Raises OSError.

    So a client that has read further learns that its offsets are gone, and does not read other records there.
    Epochs grow by as much as the ledger's generation has grown since the cut: owners that came from the same
    cut must not share an epoch.
    """
    ahead = plan.ledger.generation - plan.generation
    for path in dict.fromkeys(plan.manifest.directories):
        directory = place(log_dirs, path)
        with suppress(FileNotFoundError):
            epochs = read_epochs(directory)
            write_epochs(directory, [*epochs, (epochs[-1][0] + ahead if epochs else ahead, LONG_MAX)])


def begin_cluster(log_dirs: Iterable[Path]) -> None:
    """Give the directories the id of a new cluster. Raises OSError."""
    set_property(log_dirs, "cluster.id", uuid_text(uuid.uuid4().bytes).lstrip("-_"))


def set_property(log_dirs: Iterable[Path], key: str, value: str) -> None:
    """Set a property that meta.properties has, in directories that are not finished. Raises OSError."""
    for log_dir in log_dirs:
        path = log_dir / unfinished(META_PROPERTIES)
        lines = path.read_text("utf-8").splitlines()
        changed = [f"{key}={value}" if one.startswith(f"{key}=") else one for one in lines]
        write_whole(path, "".join(f"{one}\n" for one in changed).encode())


def finish(log_dirs: Iterable[Path]) -> None:
    """Give meta.properties its name: from here on a broker starts on the directories. Idempotent.

    Raises OSError.
    """
    for log_dir in log_dirs:
        with suppress(FileNotFoundError):
            (log_dir / unfinished(META_PROPERTIES)).rename(log_dir / META_PROPERTIES)
        fsync_directory(log_dir)
