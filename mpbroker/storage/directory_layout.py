"""A log directory as a whole: its identity, its partitions, and whether it was closed cleanly.

(Kafka: LogManager, MetaProperties, CleanShutdownFileHandler.)
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.version import VERSION
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.uuids import uuid_text
from mpbroker.storage import journal, names
from mpbroker.storage.checkpoints import fsync_directory, write_whole

_OUR_FILES = frozenset(
    {
        names.LOCK,
        names.CLEAN_SHUTDOWN,
        names.META_PROPERTIES,
        names.RECOVERY_POINTS,
        names.HIGH_WATERMARKS,
        names.LOG_STARTS,
        names.CLEANER_OFFSETS,
        names.DURABLE_MARK,
        names.SCRUB,
        names.ALL_DIRS,
    }
)

# What this version writes into a log directory, as one number. A version that writes what earlier ones cannot
# read raises it, and leaves it in meta.properties; without one there the directory has the format 1
# (docs/UPGRADING.md). Kafka ignores the key.
FORMAT = 1
FORMAT_KEY = "mpbroker.format"


@dataclass(frozen=True)
class Identity:
    """The cluster and node that the log directories belong to."""

    cluster_id: str
    node_id: int


def check_log_dirs(config: BrokerConfig) -> Identity:
    """Check the log directories; return their identity, or a new one. Write nothing. Raises FatalError."""
    found = {name: read_properties(Path(name)) for name in config.log_dirs}
    _refuse_missing(found, config)
    clusters = {properties["cluster.id"] for properties in found.values() if properties}
    if len(clusters) > 1:
        listed = ", ".join(f"{name}: {p['cluster.id']}" for name, p in found.items() if p)
        raise FatalError(
            f"log.dirs: the directories belong to different clusters ({listed}). Name those of one cluster"
        )
    for name, properties in found.items():
        if properties is None:
            _refuse_foreign(Path(name))
        elif properties["node.id"] != str(config.node_id):
            raise FatalError(
                f"{Path(name) / names.META_PROPERTIES} belongs to node {properties['node.id']}, "
                f"this broker is node {config.node_id}. Set node.id={properties['node.id']} or name another "
                "directory in log.dirs"
            )
        _refuse_unknown_directories(Path(name))
    return Identity(clusters.pop() if clusters else uuid_text(uuid.uuid4().bytes), config.node_id)


def name_log_dirs(config: BrokerConfig, identity: Identity) -> None:
    """Write the identity to directories without one, after `check_log_dirs`. Raises FatalError."""
    for name in config.log_dirs:
        if read_properties(Path(name)) is None:
            _write_properties(Path(name), identity.cluster_id, identity.node_id)
    name_all(config.log_dirs)


def read_properties(directory: Path) -> dict[str, str] | None:
    """Return the directory's `meta.properties`; None if it has no such file. Raises FatalError."""
    path = directory / names.META_PROPERTIES
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FatalError(f"cannot read {path}: {error}") from error
    properties = properties_in(text)
    if properties.get("version") == "0" and "broker.id" in properties:
        raise FatalError(
            f"log.dirs: {directory} belongs to an Apache Kafka with ZooKeeper, according to {path}. Continue "
            "with Kafka there, or name an empty directory in log.dirs and copy the topics over the "
            "network, with MirrorMaker for example"
        )
    if properties.get("version") != "1" or not {"cluster.id", "node.id"} <= properties.keys():
        raise FatalError(
            f"{path} is not a meta.properties file of version 1. Restore it, "
            "or name an empty directory in log.dirs"
        )
    _check_format(directory, properties)
    return properties


def properties_in(text: str) -> dict[str, str]:
    """Parse the text of a `meta.properties`."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def check_format(directory: Path) -> None:
    """Raise FatalError if a later version of mpbroker wrote the log directory. Raises OSError."""
    _check_format(directory, properties_in((directory / names.META_PROPERTIES).read_text("utf-8", "replace")))


def _check_format(directory: Path, properties: Mapping[str, str]) -> None:
    """Raise FatalError if the format in meta.properties is later than FORMAT, or is not a number."""
    found = properties.get(FORMAT_KEY, "1")
    if not re.fullmatch(r"[1-9][0-9]{0,8}", found):
        raise FatalError(
            f"{directory / names.META_PROPERTIES}: {FORMAT_KEY}={found} is not a number. Restore the file"
        )
    if int(found) > FORMAT:
        raise FatalError(
            f"log.dirs: {directory} was used by a later version of mpbroker: it has format {found}, and "
            f"mpbroker {VERSION} knows formats up to {FORMAT}. Start a version that knows it, or restore a "
            "copy of before the upgrade (mpbroker docs upgrading). Nothing in the directory was changed"
        )


def _write_properties(directory: Path, cluster_id: str, node_id: int) -> None:
    stamp = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime())
    lines = ["#", f"#{stamp}", f"cluster.id={cluster_id}", f"directory.id={uuid_text(uuid.uuid4().bytes)}"]
    lines += [f"node.id={node_id}", "version=1", ""]
    _write(directory / names.META_PROPERTIES, "\n".join(lines).encode())


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. Raises FatalError."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise FatalError(
            f"log.dirs: cannot write {path}: {os.strerror(error.errno or 0)}. Without it the directory has "
            "no owner; make room, or name another one"
        ) from error


def _refuse_missing(found: Mapping[str, dict[str, str] | None], config: BrokerConfig) -> None:
    """Raise FatalError if one of the broker's log directories is missing in `found`.

    The mount point of an unmounted disk is an empty directory. Its partitions would be created again, empty,
    and the next cut would have them empty, too.
    """
    here = {properties.get("directory.id") for properties in found.values() if properties}
    restore = ""
    if config.remote_log_storage_system_enable:
        restore = "restore all directories with mpbroker restore --from, or give up its records: "
    for name in found:
        for directory_id, path in _read_all(Path(name)).items():
            if directory_id not in here:
                raise FatalError(
                    f"log.dirs: {path} (directory.id {directory_id}) is missing, and partitions of this "
                    f"broker may be there. Mount it, or name its present path. If it is lost, {restore}"
                    f"remove its line from {names.ALL_DIRS} in each other one: its partitions are then "
                    "created again, empty"
                )


def name_all(log_dirs: Sequence[str]) -> None:
    """Write into each log directory the list of all log directories, `mpbroker.dirs`. Raises FatalError."""
    wanted = {}
    for name in log_dirs:
        properties = read_properties(Path(name)) or {}
        if "directory.id" in properties:
            wanted[properties["directory.id"]] = str(Path(name).absolute())
    for name in log_dirs:
        known = _read_all(Path(name))
        if known != wanted and (len(wanted) > 1 or known):
            text = "".join(f"{directory_id} {path}\n" for directory_id, path in wanted.items())
            _write(Path(name) / names.ALL_DIRS, text.encode("utf-8", "surrogateescape"))


def listed_in(text: str) -> dict[str, str]:
    """Parse the text of an `mpbroker.dirs`; return paths by directory id. Raises ValueError."""
    return dict(line.split(" ", 1) for line in text.splitlines())


def _read_all(directory: Path) -> dict[str, str]:
    """Read `mpbroker.dirs`; return paths by directory id, none if the file is missing. Raises FatalError."""
    path = directory / names.ALL_DIRS
    try:
        return listed_in(path.read_text("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FatalError(
            f"cannot read {path}: {error}. If all directories of this broker are in log.dirs, delete it"
        ) from error


def _refuse_foreign(directory: Path) -> None:
    """Raise FatalError if a directory without meta.properties has files that mpbroker does not know."""
    # A killed start may have left the lock and a half-written file.
    ours = _OUR_FILES | names.NOT_PARTITIONS | {names.META_PROPERTIES + ".tmp"}
    others = sorted(
        entry.name
        for entry in directory.iterdir()
        if entry.name not in ours and journal.worker_of(entry.name) is None
    )
    if others:
        raise FatalError(
            f"log.dirs: {directory} has no {names.META_PROPERTIES} but is not empty (it contains "
            f"{others[0]}). Name an empty directory, or restore the file"
        )


def own_files(log_dir: Path) -> list[Path]:
    """Return the files in a log directory that Kafka does not have (mpbroker.*). Raises OSError."""
    with os.scandir(log_dir) as entries:
        return [Path(one.path) for one in entries if one.name.startswith(names.OWN_PREFIX) and one.is_file()]


def directories_in(log_dir: Path) -> Iterator[str]:
    """Yield the names of the subdirectories, except those in names.NOT_PARTITIONS. Raises OSError.

    This is an iterator, since thousands of names take much memory. A directory that is created, renamed or
    removed during the iteration may be missed.
    """
    with os.scandir(log_dir) as entries:
        for entry in entries:
            # A link that leads nowhere, or to itself, is not one.
            is_dir = entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and Path(entry.path).is_dir())
            if is_dir and entry.name not in names.NOT_PARTITIONS:
                yield entry.name


def _refuse_unknown_directories(directory: Path) -> None:
    for name in directories_in(directory):
        if names.is_live_partition(name):
            continue
        try:
            names.parse_partition(name)
        except names.NotAPartition as error:
            raise FatalError(
                f"log.dirs: {directory / name} is not the directory of a partition (<topic>-<number>). "
                f"Move it out of {directory}"
            ) from error


def take_clean_shutdown(directory: Path) -> bool:
    """Remove the marker of a clean stop, since a crash may follow. Return whether there was a marker."""
    try:
        (directory / names.CLEAN_SHUTDOWN).unlink()
    except FileNotFoundError:
        return False
    fsync_directory(directory)
    return True


def write_clean_shutdown(directory: Path) -> None:
    """Write the marker of a clean stop. It must be the last write before the broker ends."""
    write_whole(
        directory / names.CLEAN_SHUTDOWN,
        json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode(),
    )
