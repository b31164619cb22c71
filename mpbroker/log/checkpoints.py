"""Small text files that must be whole or old: offset checkpoints, leader epochs, `partition.metadata`.

(Kafka: CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, PartitionMetadataFile.) A checkpoint
is its version, the number of entries, then an entry per line.

Kafka's text has no checksum, and a flipped bit would make another offset of one: records below a wrong log
start are gone. So offsets begin with an entry of a topic that cannot exist, whose offset is the CRC-32C of
the lines behind it. Kafka reads it as one of a partition that it does not have, and leaves it out when it
writes; what has none is believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mpbroker.log.names import LEADER_EPOCHS, PARTITION_METADATA
from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.records.batch import checksum

TopicPartition = tuple[str, int]
# No topic's name has a colon.
_CHECKSUM = "mpbroker:crc"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class CheckpointCorrupt(ValueError):
    """The file does not say what it should; the text names it."""


def fsync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Replaces the file in one step, durable when it returns."""
    making = path.with_name(path.name + ".tmp")
    _fill(os.open(making, _NEW_FILE, 0o644), data)
    making.rename(path)
    fsync_directory(path.parent)


def write_whole_at(directory: int, name: str, data: bytes) -> None:
    """The same for a directory that is open, whatever it is called by now."""
    making = name + ".tmp"
    _fill(os.open(making, _NEW_FILE, 0o644, dir_fd=directory), data)
    os.rename(making, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def write_all(fd: int, data: bytes) -> None:
    """Before a disk is full it takes a part, and only what comes next fails. Raises OSError."""
    at = 0
    while at < len(data):
        at += os.write(fd, data[at:])


def _fill(fd: int, data: bytes) -> None:
    """Writes, syncs and closes."""
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _text_of(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "".join(f"{line}\n" for line in ["0", str(len(body)), *body]).encode()


def _read_lines(path: Path) -> list[list[str]]:
    """The entries' fields; a file that is missing or empty has none. Raises CheckpointCorrupt, OSError."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"{path} is not text") from error
    if not text:
        return []
    lines = text.split("\n")
    if lines[0] != "0" or len(lines) < 2:
        raise CheckpointCorrupt(f"{path} begins with version {lines[0]!r}, not 0")
    entries = [line.split() for line in lines[2:] if line]
    if lines[1] != str(len(entries)):
        raise CheckpointCorrupt(f"{path} says it has {lines[1]} entries and has {len(entries)}")
    return entries


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    if lines:
        lines.insert(0, f"{_CHECKSUM} 0 {_checksum_of(lines)}")
    write_whole(path, _text_of(lines))


def _checksum_of(lines: Iterable[str]) -> int:
    return checksum("\n".join(lines).encode())


@contextlib.contextmanager
def alone_with(directory: Path) -> Iterator[None]:
    """While no other log worker replaces a checkpoint there. The kernel ends it for whoever dies."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Raises CheckpointCorrupt, OSError."""
    offsets = {}
    entries = _read_lines(path)
    if entries and entries[0][0] == _CHECKSUM:
        said = entries.pop(0)[1:]
        if said != ["0", str(_checksum_of(" ".join(entry) for entry in entries))]:
            raise CheckpointCorrupt(f"{path} does not have the checksum that it says it has")
    for entry in entries:
        try:
            topic, partition, offset = entry
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise CheckpointCorrupt(f"{path} has the malformed line {' '.join(entry)!r}") from error
    return offsets


def write_epochs(directory: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """(epoch, start offset), ascending."""
    write_whole(directory / LEADER_EPOCHS, _text_of_epochs(epochs))


def write_epochs_at(directory: int, epochs: Iterable[tuple[int, int]]) -> None:
    """The same for a directory that is open, whatever it is called by now."""
    write_whole_at(directory, LEADER_EPOCHS, _text_of_epochs(epochs))


def _text_of_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _text_of(f"{epoch} {start}" for epoch, start in epochs)


def read_epochs(directory: Path) -> list[tuple[int, int]]:
    """Raises CheckpointCorrupt, OSError."""
    path = directory / LEADER_EPOCHS
    epochs = []
    for entry in _read_lines(path):
        try:
            epoch, start = map(int, entry)
        except ValueError as error:
            raise CheckpointCorrupt(f"{path} has the malformed line {' '.join(entry)!r}") from error
        epochs.append((epoch, start))
    return epochs


def write_topic_id(directory: Path, topic_id: bytes) -> None:
    write_whole(directory / PARTITION_METADATA, f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode())


def read_topic_id(directory: Path, expected: bytes | None = None) -> bytes | None:
    """None if the file is missing. `expected`: by the directory's name; another id is of a topic that was
    deleted, but for one that differs in a bit. Raises CheckpointCorrupt, OSError.
    """
    path = directory / PARTITION_METADATA
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"{path} is not text") from error
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CheckpointCorrupt(f"{path} is not partition metadata of version 0")
    try:
        topic_id = uuid_bytes(fields["topic_id"])
    except ValueError as error:
        raise CheckpointCorrupt(f"{path} has the malformed topic id {fields['topic_id']!r}") from error
    if topic_id == bytes(16):
        raise CheckpointCorrupt(f"{path} has the zero topic id")
    if expected is not None and is_flipped(topic_id, expected):
        raise CheckpointCorrupt(
            f"{path} has the topic id {fields['topic_id']}, which is the right one but for a letter: a bit "
            f"has flipped. Write topic_id: {uuid_text(expected)} there, and restart the broker"
        )
    return topic_id


def is_flipped(found: bytes, expected: bytes) -> bool:
    """Whether an id is another one in a single letter of its text: ids are random, so a bit has flipped."""
    letters = zip(uuid_text(found), uuid_text(expected), strict=True)
    return sum(one != other for one, other in letters) == 1


def topic_id_if_any(directory: Path) -> bytes | None:
    """None also if it cannot be read."""
    try:
        return read_topic_id(directory)
    except CheckpointCorrupt:
        return None
