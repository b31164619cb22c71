"""Finds out which broker a log directory belongs to, whether it is running, and its other log directories.

A running broker holds locks on the file `.lock` of each of its log directories, and on its runtime directory
(mpbroker.storage.directory_layout, mpbroker.startup.runtime_dir). Every process that sees the file can test
the lock, also in another container, where the broker's process id means nothing. A copied directory is not
locked, though its `mpbroker.json` still names the runtime directory of the original's broker.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.ipc.pointer import POINTER_NAME, PUBLIC_NAME, has_broker, is_locked, read_pointer
from mpbroker.ipc.topology import LAYOUT_VERSION, PUBLIC_MAGIC
from mpbroker.reading.errors import FilesUnavailable, OptionError, SourceUnavailable
from mpbroker.storage.directory_layout import listed_in, properties_in
from mpbroker.storage.names import ALL_DIRS, META_PROPERTIES, MOVED, STAYED
from shm.ownership import UntrustedPath, check_path
from shm.region import LayoutMismatch, Region

START_PATIENCE_S: Final = 5.0
"""A plan waits this long for a broker that has locked its directories and will publish its partitions."""
END_PATIENCE_S: Final = 1.0
"""A plan waits this long for the processes of a killed broker, which may still hold the broker's locks."""
_POLL_S = 0.05
_FETCH_INSTEAD = "or give kafka.bootstrap.servers (with readMode auto or remote) to fetch from the broker"


class Identity(NamedTuple):
    """The content of `meta.properties`. `directory_id` is empty if the file has none."""

    cluster_id: str
    node_id: str
    directory_id: str


def identity_of(log_dir: Path) -> Identity | None:
    """Read which broker the directory belongs to; None without `meta.properties`. Raises FilesUnavailable."""
    with permission_needed(log_dir):
        try:
            text = (log_dir / META_PROPERTIES).read_text("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
    fields = properties_in(text)
    # Before KRaft Kafka calls it broker.id.
    node_id = fields.get("node.id", fields.get("broker.id", ""))
    return Identity(fields.get("cluster.id", ""), node_id, fields.get("directory.id", ""))


@contextmanager
def permission_needed(path: Path) -> Iterator[None]:
    """Turn PermissionError into FilesUnavailable, whose text advises how to get access."""
    try:
        yield
    except PermissionError as error:
        raise FilesUnavailable(
            f"this user may not read {error.filename or path}: {os.strerror(error.errno or errno.EACCES)}. "
            f"Run as a member of the broker's group, {_FETCH_INSTEAD}"
        ) from error


def with_siblings(named: Sequence[str]) -> dict[Path, Identity]:
    """Return the named log directories, and all other log directories of the same brokers.

    A broker with several log directories lists all of them in a file `mpbroker.dirs` in each. A topic may
    have partitions in all of them. Apache Kafka has no such file: `named` must contain all directories of a
    Kafka broker. Raises OptionError for a path that is not a log directory, FilesUnavailable if another
    directory cannot be read.
    """
    found: dict[Path, Identity] = {}
    for name in named:
        path = Path(name).absolute()
        identity = identity_of(path)
        if identity is None:
            raise OptionError(
                f"log.dir: {path} is not a broker's log directory, it has no {META_PROPERTIES}. "
                "Name a directory of the broker's log.dirs, as this process sees it"
            )
        found[path] = identity
    for path in list(found):
        for directory_id, other in _listed_in(path).items():
            if directory_id not in {one.directory_id for one in found.values()}:
                found[other] = _sibling(path, directory_id, other)
    return found


def _listed_in(log_dir: Path) -> dict[str, Path]:
    """Return {directory id: path as the broker sees it} from `mpbroker.dirs`; {} if the file is missing."""
    path = log_dir / ALL_DIRS
    try:
        with permission_needed(path):
            text = path.read_text("utf-8", "surrogateescape")
        return {directory_id: Path(name) for directory_id, name in listed_in(text).items()}
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SourceUnavailable(
            f"{path} is damaged: cannot determine the broker's other directories. Restart the broker"
        ) from error


def _sibling(log_dir: Path, directory_id: str, other: Path) -> Identity:
    identity = identity_of(other)
    if identity is None or identity.directory_id != directory_id:
        raise FilesUnavailable(
            f"log.dir: the broker of {log_dir} has partitions in {other}, too (directory.id {directory_id}), "
            f"which is not here. Mount it there, name it where it is in log.dir, {_FETCH_INSTEAD}"
        )
    return identity


def is_of(log_dir: Path, cluster_id: str, node_id: str) -> bool:
    """Return whether the path is a log directory of the broker with these ids. Raises FilesUnavailable."""
    identity = identity_of(log_dir)
    return identity is not None and (identity.cluster_id, identity.node_id) == (cluster_id, node_id)


@dataclass(frozen=True)
class RunningBroker:
    """A running broker, found from `log_dir`. `region` maps its public memory file, `inode` is the file's."""

    log_dir: Path
    runtime_dir: Path
    region: Region
    inode: int

    def is_running(self) -> bool:
        """Return whether this same broker still runs on the log directory. Raises OSError."""
        try:
            is_same = (self.runtime_dir / PUBLIC_NAME).stat().st_ino == self.inode
        except FileNotFoundError:
            return False
        return is_same and has_broker(self.log_dir) and is_locked(self.runtime_dir)


def running_broker(log_dir: Path, patience_s: float | None = None) -> RunningBroker | None:
    """Attach the public shared memory of the broker that runs on the directory; None if no broker does.

    Waits at most `patience_s` until a starting broker is ready, or the last process of a killed broker has
    ended. Raises FilesUnavailable if a broker runs and its shared memory cannot be attached here.
    """
    begun = time.monotonic()
    while True:
        with permission_needed(log_dir):
            if not has_broker(log_dir):
                return None
            try:
                return _broker_of(log_dir)
            except _NotNow as reason:
                waits_s = reason.patience_s if patience_s is None else patience_s
                if time.monotonic() - begun >= waits_s and has_broker(log_dir):
                    raise FilesUnavailable(str(reason)) from reason
        time.sleep(_POLL_S)


class _NotNow(Exception):
    """The broker's shared memory was not found; callers try again until `patience_s` has passed."""

    def __init__(self, text: str, patience_s: float) -> None:
        super().__init__(text)
        self.patience_s = patience_s


def _broker_of(log_dir: Path) -> RunningBroker:
    """Attach the public shared memory of the broker that has locked the directory.

    Raises _NotNow, FilesUnavailable, SourceUnavailable, PermissionError.
    """
    try:
        pointer = read_pointer(log_dir)
    except msgspec.DecodeError as error:
        raise SourceUnavailable(
            f"{log_dir / POINTER_NAME} is damaged: {error}. Restart the broker"
        ) from error
    if pointer is None:
        raise _NotNow(
            f"a broker has {log_dir} and has not published its partitions yet: it is starting. Run the "
            f"query again when it has started, {_FETCH_INSTEAD}",
            START_PATIENCE_S,
        )
    runtime_dir = Path(pointer.runtime_dir)
    if not runtime_dir.is_dir():
        raise _NotNow(
            f"a broker has {log_dir}, and its runtime directory {runtime_dir} is not here: it runs in "
            f"another container. Share its /dev/shm (or /run) with this one, {_FETCH_INSTEAD}",
            END_PATIENCE_S,
        )
    if not is_locked(runtime_dir):
        raise _NotNow(
            f"a broker has {log_dir}, and no broker runs on {runtime_dir} here: it is starting, or runs in "
            f"another container. Share its /dev/shm (or /run) with this one, {_FETCH_INSTEAD}",
            START_PATIENCE_S,
        )
    try:
        check_path(runtime_dir / PUBLIC_NAME, (log_dir / POINTER_NAME).stat().st_uid)
        # Taken now, so that another broker in its place is noticed: this one then counts as ended.
        inode = (runtime_dir / PUBLIC_NAME).stat().st_ino
        region = Region.attach(runtime_dir / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
    except LayoutMismatch as error:
        raise FilesUnavailable(f"{error}, {_FETCH_INSTEAD}") from error
    except UntrustedPath as error:
        raise FilesUnavailable(
            f"{runtime_dir} may not be that of the broker of {log_dir}: {error}, {_FETCH_INSTEAD}"
        ) from error
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise _NotNow(f"{error}: the broker of {log_dir} is starting", START_PATIENCE_S) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise PermissionError(error.errno, error.strerror, str(runtime_dir / PUBLIC_NAME)) from error
        raise FilesUnavailable(f"{error}, {_FETCH_INSTEAD}") from error
    return RunningBroker(log_dir, runtime_dir, region, inode)


def one_that_counts(paths: Sequence[Path]) -> Path:
    """Return the valid one of a partition's directories: during and after a move, several may exist."""
    if len(paths) == 1:
        return paths[0]
    marked = [one for one in paths if (one / STAYED).exists()]
    marked = marked or [one for one in paths if (one / MOVED).exists()]
    if not marked:
        # A move that has just ended has renamed the other directory before it took the mark away.
        marked = [path for path in paths if path.is_dir()]
    if len(marked) != 1:
        listed = ", ".join(map(str, paths))
        raise SourceUnavailable(f"a partition has several directories: {listed}. Move all but one away")
    return marked[0]
