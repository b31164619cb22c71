"""The log directories of a stopped node, locked and checked: the first step of an import and an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.storage import names
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs, read_topic_id
from mpbroker.storage.directory_layout import check_log_dirs, directories_in, read_properties
from mpbroker.storage.directory_lock import LogDirLocks, is_in_use, locked_by
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import METADATA_DIRECTORY
from mpbroker.storage.strict_stat import is_there

Replicas = Mapping[tuple[str, int], Path]


@dataclass(frozen=True)
class LogDirs:
    """All log directories of a node. `home`: the one with the metadata. `ids`: directory ids by path."""

    paths: tuple[Path, ...]
    home: Path
    cluster_id: str
    node_id: int
    ids: Mapping[Path, bytes]

    @property
    def metadata(self) -> Path:
        return self.home / METADATA_DIRECTORY


@contextmanager
def held(paths: Sequence[Path], *, is_dry: bool) -> Iterator[LogDirs]:
    """Check that these are all log directories of a cleanly stopped node, and lock them in the `with` block.

    A dry run takes no locks, because this could create files. Raises CannotMove, FatalError, OSError.
    """
    paths = tuple(dict.fromkeys(path.resolve() for path in paths))
    for path in paths:
        _check_there(path)
    found = _identified(paths)
    _check_stopped_in_order(found)
    locks = None if is_dry else LogDirLocks(_config_of(paths, found.node_id))
    try:
        yield found
    finally:
        if locks is not None:
            locks.undo()


def _check_there(path: Path) -> None:
    if not path.is_dir():
        raise CannotMove(
            f"{path} is {'no directory' if is_there(path) else 'not there'}: name log directories"
        )
    if not is_there(path / names.META_PROPERTIES):
        raise CannotMove(f"{path} has no {names.META_PROPERTIES}: name a directory of log.dirs")
    if is_in_use(path):
        raise CannotMove(
            f"a broker has {path} open{locked_by(path)}. Stop it in order first, with SIGTERM, then try again"
        )


def _identified(paths: tuple[Path, ...]) -> LogDirs:
    """Return the directories with the ids of their node and cluster. Raises CannotMove, FatalError."""
    read = {path: read_properties(path) or {} for path in paths}
    node_id = _node_id(paths[0], read[paths[0]]["node.id"])
    identity = check_log_dirs(_config_of(paths, node_id))
    ids = {}
    for path, properties in read.items():
        if "directory.id" not in properties:
            raise CannotMove(
                f"{path / names.META_PROPERTIES} has no directory.id: start its broker once more"
            )
        ids[path] = _directory_id(path, properties["directory.id"])
    homes = [path for path in paths if (path / METADATA_DIRECTORY).is_dir()]
    if not homes:
        listed = ", ".join(map(str, paths))
        raise CannotMove(
            f"no {METADATA_DIRECTORY} in {listed}: name all directories of log.dirs, and metadata.log.dir "
            "if Kafka has one"
        )
    if len(homes) > 1:
        raise CannotMove(f"{METADATA_DIRECTORY} is in {homes[0]} and in {homes[1]}: move the old one away")
    return LogDirs(paths, homes[0], identity.cluster_id, node_id, ids)


def _node_id(path: Path, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) >= 1 << 31:
        raise CannotMove(
            f"{path / names.META_PROPERTIES}: node.id={text} is not an id. Restore the file from a copy"
        )
    return int(text)


def _directory_id(path: Path, text: str) -> bytes:
    try:
        return uuid_bytes(text)
    except ValueError as error:
        raise CannotMove(
            f"{path / names.META_PROPERTIES}: directory.id={text} is not an id ({error}). Restore the file "
            "from a copy"
        ) from error


def _config_of(paths: Sequence[Path], node_id: int) -> BrokerConfig:
    return BrokerConfig(log_dirs=tuple(map(str, paths)), node_id=node_id)


def _check_stopped_in_order(found: LogDirs) -> None:
    """Raise CannotMove if a directory with partitions lacks the file that marks a clean stop."""
    for path in found.paths:
        others = [name for name in directories_in(path) if name != METADATA_DIRECTORY]
        if is_there(path / names.CLEAN_SHUTDOWN) or not others:
            continue
        raise CannotMove(
            f"{path} was not closed in order: its broker was killed, or the machine was. Start the broker "
            "on it once more, wait until it is ready, and stop it with SIGTERM"
        )


def replicas_in(found: LogDirs, image: ClusterImage) -> Replicas:
    """Return each partition's directory. Raises OSError, and CannotMove if one is missing or wrong."""
    there: dict[tuple[str, int], Path] = {}
    for home in found.paths:
        for name in directories_in(home):
            parsed = names.parse_partition(name)
            if parsed.suffix or name == METADATA_DIRECTORY:
                continue
            key, path = (parsed.topic, parsed.partition), home / name
            if key in there:
                raise CannotMove(
                    f"the partition {name} is in {there[key].parent} and in {home}: start the broker once "
                    "more, which settles that, or move the wrong one away"
                )
            there[key] = path
    for topic, topic_id, record in image.all_partitions():
        found_at = there.get((topic, record.partition_id))
        if found_at is None:
            listed = ", ".join(map(str, found.paths))
            raise CannotMove(
                f"the partition {topic}-{record.partition_id} is in none of {listed}: name all directories "
                "of log.dirs"
            )
        _check_id(found_at, topic_id)
    return there


def _check_id(path: Path, topic_id: bytes) -> None:
    """Raise CannotMove if a partition's directory is of another topic id, for instance of a deleted topic."""
    try:
        found = read_topic_id(path)
    except CheckpointCorrupt as error:
        raise CannotMove(f"{error}. Restore it from a copy") from error
    if found != topic_id:
        text = "no topic's" if found is None else uuid_text(found)
        raise CannotMove(
            f"{path} has the id {text}, and the metadata say {uuid_text(topic_id)}: it is of another topic "
            "of that name. Move it away, or restore the right one"
        )


def epochs_in(path: Path) -> Epochs:
    """Return the leader epochs in a partition's directory. Raises CannotMove, OSError."""
    try:
        return read_epochs(path)
    except CheckpointCorrupt as error:
        raise CannotMove(f"{error}. Start the broker once more, which makes it again") from error


def leader_epoch_in(path: Path) -> int:
    """Return the latest leader epoch in a partition's directory, 0 if none. Raises CannotMove, OSError."""
    epochs = epochs_in(path)
    return epochs[-1][0] if epochs else 0


def strays_in(image: ClusterImage, there: Replicas) -> list[str]:
    """Return the directories of partitions that the metadata do not know. A broker's start renames them."""
    known = {(topic, record.partition_id) for topic, _, record in image.all_partitions()}
    return sorted(str(path) for key, path in there.items() if key not in known)
