"""Small text files that are replaced atomically: offset checkpoints, leader epochs, `partition.metadata`.

(Kafka: CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, PartitionMetadataFile.) A checkpoint
holds its version, the number of entries, then an entry per line.

Kafka's text has no checksum. A flipped bit would change an offset, and a wrong log start offset loses
records. Therefore an offset checkpoint begins with an entry of a topic that cannot exist, whose offset is the
CRC-32C of the following lines. Kafka assumes that the entry belongs to a partition that it does not have, and
drops the entry when it writes the file. A file without a checksum is accepted.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, TypeVar

from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.records.batch import checksum
from mpbroker.storage.names import LEADER_EPOCHS, LOG_SUFFIX, PARTITION_METADATA, parse_segment

_Topic = TypeVar("_Topic", bound=Hashable)
# Numbers are offsets and slots.
_TOO_LARGE = 1 << 63


class PartitionMap(MutableMapping[tuple[_Topic, int], int]):
    """A mapping from (topic, partition) to a number. Partitions and numbers are not negative."""

    __slots__ = ("_topics",)

    def __init__(self, numbers: Mapping[tuple[_Topic, int], int] | None = None) -> None:
        self._topics: dict[_Topic, dict[int, int]] = {}
        if numbers is not None:
            self.update(numbers)

    def __getitem__(self, key: tuple[_Topic, int]) -> int:
        return self._topics[key[0]][key[1]]

    def __setitem__(self, key: tuple[_Topic, int], number: int) -> None:
        """Set a number. Raises ValueError if partition or number is negative, or the number is no int64."""
        topic, partition = key
        if partition < 0 or not 0 <= number < _TOO_LARGE:
            raise ValueError(f"{key} has the number {number}")
        self._topics.setdefault(topic, {})[partition] = number

    def __delitem__(self, key: tuple[_Topic, int]) -> None:
        topic = self._topics[key[0]]
        del topic[key[1]]
        if not topic:
            del self._topics[key[0]]

    def __iter__(self) -> Iterator[tuple[_Topic, int]]:
        return ((topic, partition) for topic, partitions in self._topics.items() for partition in partitions)

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    def copy(self) -> PartitionMap[_Topic]:
        made: PartitionMap[_Topic] = PartitionMap()
        made._topics = {topic: partitions.copy() for topic, partitions in self._topics.items()}
        return made

    def of(self, topic: _Topic) -> list[int]:
        """Return the partitions of a topic that are in the mapping."""
        return list(self._topics.get(topic, ()))


Offsets: TypeAlias = PartitionMap[str]
# No topic's name has a colon.
_CHECKSUM = "mpbroker:crc"
_NO_ENTRIES = "0\n0\n"
# Most files here are smaller: one read takes them.
_READ_BYTES = 16 << 10
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class CheckpointCorrupt(ValueError):
    """A file with invalid content; the message names the file."""


class opened:  # noqa: N801 - used like `open`
    """Opens a file for a `with` block. Raises OSError."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path | str, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644, dir_fd=dir_fd)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def fsync_directory(directory: Path) -> None:
    """Sync a directory, so that files created, renamed or removed in it are durable. Raises OSError."""
    with opened(directory, os.O_DIRECTORY) as fd:
        os.fsync(fd)


def read_whole(path: Path | str) -> bytes:
    """Read a file. For a small file `Path.read_bytes` takes four times as long. Raises OSError."""
    with opened(path) as fd:
        data = os.read(fd, _READ_BYTES)
        if len(data) < _READ_BYTES:
            return data
        pieces = [data]
        while piece := os.read(fd, max(_READ_BYTES, os.fstat(fd).st_size)):
            pieces.append(piece)
        return b"".join(pieces)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. On OSError the temporary file is removed."""
    _put_whole(path, data)
    fsync_directory(path.parent)


def _put_whole(path: Path | str, data: bytes, *, synced: bool = True) -> None:
    """Replace a file atomically. If `synced`, sync the data, but not the directory. Raises OSError."""
    making = f"{path}.tmp"
    fd = os.open(making, _NEW_FILE, 0o644)
    try:
        _fill(fd, data, synced=synced)
        os.rename(making, path)  # noqa: PTH104 - of thousands of partitions
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(making)  # noqa: PTH108
        raise


def write_whole_at(directory: int, name: str, data: bytes) -> None:
    """Like `write_whole`, but in an open directory, which may have been renamed. Raises OSError."""
    making = name + ".tmp"
    fd = os.open(making, _NEW_FILE, 0o644, dir_fd=directory)
    try:
        _fill(fd, data)
        os.rename(making, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(making, dir_fd=directory)
        raise
    os.fsync(directory)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`. A single write may be incomplete when the disk becomes full. Raises OSError."""
    at = 0
    while at < len(data):
        at += os.write(fd, data[at:])


def write_all_at(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all of `data` at `position`. Raises OSError."""
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], position + at)


def _fill(fd: int, data: bytes, *, synced: bool = True) -> None:
    """Write `data` to `fd`, sync it if `synced`, and close it. Raises OSError."""
    try:
        write_all(fd, data)
        if synced:
            os.fsync(fd)
    finally:
        os.close(fd)


def _text_of(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "".join(f"{line}\n" for line in ["0", str(len(body)), *body]).encode()


def _read_lines(path: Path | str) -> list[str]:
    """Return a checkpoint's lines, none if the file is missing or empty. Raises CheckpointCorrupt."""
    try:
        return _lines_in(read_whole(path), path)
    except FileNotFoundError:
        return []


def _lines_in(data: bytes, path: Path | str) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"{path} is not text") from error
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if not text:
        return []
    lines = text.split("\n")
    if lines[0] != "0" or len(lines) < 2:
        raise CheckpointCorrupt(f"{path} begins with version {lines[0]!r}, not 0")
    entries = [line for line in lines[2:] if line]
    if lines[1] != str(len(entries)):
        raise CheckpointCorrupt(f"{path} announces {lines[1]} entries and has {len(entries)}")
    return entries


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably. Raises OSError."""
    # Python would keep the memory of a string for each of thousands of lines.
    body = io.StringIO()
    for (topic, partition), offset in offsets.items():
        body.write(f"{topic} {partition} {offset}\n")
    text = body.getvalue()
    if text:
        text = f"0\n{len(offsets) + 1}\n{_CHECKSUM} 0 {_checksum_of([text[:-1]])}\n{text}"
    write_whole(path, (text or _NO_ENTRIES).encode())


def _checksum_of(lines: Iterable[str]) -> int:
    """Return the CRC-32C of the lines, joined by newlines."""
    return checksum("\n".join(lines).encode())


def _plain(entries: Iterable[str]) -> Iterator[str]:
    """Yield the entries with single spaces between the words, as `write_offsets` writes them."""
    return (" ".join(entry.split()) for entry in entries)


def put_id_and_epochs(
    directory: Path | str, topic_id: bytes, epochs: Iterable[tuple[int, int]], *, synced: bool = True
) -> None:
    """Write a new partition's topic id and epochs. If `synced`, sync the files, but not the directory."""
    _put_whole(f"{directory}/{PARTITION_METADATA}", text_of_id(topic_id), synced=synced)
    _put_whole(f"{directory}/{LEADER_EPOCHS}", text_of_epochs(epochs), synced=synced)


@contextlib.contextmanager
def alone_with(directory: Path) -> Iterator[None]:
    """Hold the exclusive lock under which a directory's checkpoints are replaced (flock). Raises OSError."""
    with opened(directory, os.O_DIRECTORY) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def read_offsets(path: Path) -> Offsets:
    """Read an offset checkpoint. A missing file has no offsets. Raises CheckpointCorrupt, OSError."""
    offsets: Offsets = PartitionMap()
    entries = _read_lines(path)
    if entries and entries[0].startswith(f"{_CHECKSUM} "):
        recorded = entries.pop(0).split()[1:]
        if recorded != ["0", str(_checksum_of(entries))] and recorded != [
            "0",
            str(_checksum_of(_plain(entries))),
        ]:
            raise CheckpointCorrupt(f"{path} does not match its checksum")
    for entry in entries:
        try:
            topic, partition, offset = entry.split()
            offsets[topic, int(partition)] = int(offset)
        except (ValueError, OverflowError) as error:
            raise CheckpointCorrupt(f"{path} has the malformed line {entry!r}") from error
    return offsets


def write_epochs(directory: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """Write the leader epochs, ascending (epoch, start offset) pairs, durably. Raises OSError."""
    write_whole(directory / LEADER_EPOCHS, text_of_epochs(epochs))


def write_epochs_at(directory: int, epochs: Iterable[tuple[int, int]]) -> None:
    """Write the leader epochs in an open directory, which may have been renamed. Raises OSError."""
    write_whole_at(directory, LEADER_EPOCHS, text_of_epochs(epochs))


def text_of_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes of a `leader-epoch-checkpoint`."""
    return _text_of(f"{epoch} {start}" for epoch, start in epochs)


def read_epochs(directory: Path | str) -> list[tuple[int, int]]:
    """Read the (epoch, start offset) pairs of a partition's directory. Raises CheckpointCorrupt, OSError."""
    path = f"{directory}/{LEADER_EPOCHS}"
    return _epochs(_read_lines(path), path)


def epochs_in(data: bytes, path: Path | str) -> list[tuple[int, int]]:
    """Return the pairs in the bytes of a `leader-epoch-checkpoint`. Raises CheckpointCorrupt."""
    return _epochs(_lines_in(data, path), path)


def _epochs(entries: Iterable[str], path: Path | str) -> list[tuple[int, int]]:
    epochs = []
    for entry in entries:
        try:
            epoch, start = map(int, entry.split())
        except ValueError as error:
            raise CheckpointCorrupt(f"{path} has the malformed line {entry!r}") from error
        epochs.append((epoch, start))
    return epochs


def write_topic_id(directory: Path, topic_id: bytes) -> None:
    """Write `partition.metadata` durably. Raises OSError."""
    write_whole(directory / PARTITION_METADATA, text_of_id(topic_id))


# All partitions of a topic have the same text.
@lru_cache(16)
def text_of_id(topic_id: bytes) -> bytes:
    """Return the content of a `partition.metadata` with this topic id."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_topic_id(directory: Path | str, expected: bytes | None = None) -> bytes | None:
    """Read the topic id of a partition; None if it has none. Raises CheckpointCorrupt, OSError.

    `expected` is the id of the topic that has the directory's name now. The file of a deleted topic has
    another id, which is returned. If the ids differ in one letter only, a bit has flipped: CheckpointCorrupt.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = read_whole(path)
        if expected is not None and data == text_of_id(expected):
            return expected
        if not data.strip(b"\0") and not _was_used(directory):
            # The power failed before the creation of the partition was on disk.
            return None
        lines = data.decode().splitlines()
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


def _was_used(directory: Path | str) -> bool:
    """Return whether a partition may have had records. Raises OSError."""
    with os.scandir(directory) as entries:
        segments = [entry for entry in entries if entry.name.endswith(LOG_SUFFIX)]
        return any(parse_segment(entry.name) or entry.stat().st_size for entry in segments)


def is_flipped(found: bytes, expected: bytes) -> bool:
    """Return whether two ids' texts differ in exactly one letter. Ids are random: a bit must have flipped."""
    letters = zip(uuid_text(found), uuid_text(expected), strict=True)
    return sum(one != other for one, other in letters) == 1


def topic_id_if_any(directory: Path) -> bytes | None:
    """Read the topic id of a partition; None if it is missing or corrupt. Raises OSError."""
    try:
        return read_topic_id(directory)
    except CheckpointCorrupt:
        return None
