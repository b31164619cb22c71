"""The file `mpbroker.scrub`: damaged ranges of a log directory, and the scrubber's position.

The first line has name, version and the CRC-32C of the rest, which is JSON. Only the scrubber writes the
file, always as a whole. A reader of a partition reads the damaged ranges from the file if the damage version
in the partition table (ipc/table.pxd) is not 0. A finding belongs to one particular segment file. It is void
when the segment file is deleted, repaired or replaced by compaction.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mpbroker.records.batch import checksum
from mpbroker.storage.checkpoints import CheckpointCorrupt, write_whole
from mpbroker.storage.names import LOG_SUFFIX, SCRUB, segment_name

VERSION = 0


class FileIdentity(msgspec.Struct, frozen=True):
    """The identity of a sealed segment's file. A later file of the same name differs in a field."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Damage(msgspec.Struct, frozen=True):
    """A finding: bytes [position, end) are not valid batches; offsets [first, end_offset) cannot be read.

    If the file is a `.txnindex`, it is unknown which of the offsets are committed. Then read_committed
    consumers cannot read the offsets, and other consumers can.
    """

    partition: str  # the name of its directory
    base: int
    position: int
    end: int
    first: int
    end_offset: int = msgspec.field(name="behind")
    reason: str
    file: FileIdentity
    found_ms: int
    suffix: str = LOG_SUFFIX

    @property
    def is_of_records(self) -> bool:
        return self.suffix == LOG_SUFFIX

    def is_there(self, log_dir: Path) -> bool:
        """Return whether the damaged file still exists unchanged; True also if it cannot be checked."""
        try:
            status = (log_dir / self.partition / segment_name(self.base, self.suffix)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return FileIdentity.of(status) == self.file

    def __str__(self) -> str:
        name = f"{self.partition}/{segment_name(self.base, self.suffix)}"
        offsets = f"offsets {self.first} to {self.end_offset - 1}"
        if not self.is_of_records:
            return f"{name} is damaged: {self.reason}; it is unknown which of {offsets} are committed"
        place = f"from byte {self.position} to {self.end - 1}"
        return f"{name} is damaged {place}: {self.reason}; {offsets} cannot be read"


class Place(msgspec.Struct):
    """The place where a scrub stopped: a segment, its next batch, and the damage found before that batch."""

    partition: str
    base: int
    file: FileIdentity
    position: int = 0
    next_offset: int = 0
    found: list[Damage] = msgspec.field(default_factory=list)


class Pass(msgspec.Struct):
    """One scrub of a log directory. `ended_ms` is 0 until the scrub has ended."""

    began_ms: int
    ended_ms: int = 0
    bytes: int = 0
    batches: int = 0


class Scrubbed(msgspec.Struct):
    """The content of `mpbroker.scrub`. `at` is where the current scrub stopped, None at its beginning."""

    damages: list[Damage] = msgspec.field(default_factory=list)
    current: Pass | None = None
    at: Place | None = None
    last: Pass | None = None

    def all_damages(self) -> list[Damage]:
        """Return all known damages: `damages`, and those in the segment that is being scrubbed (`at.found`).

        Of the segment's earlier findings, leave out those before `at.position`: the scrub looked there again.
        """
        at = self.at
        if at is None:
            return list(self.damages)

        def is_found_again(one: Damage) -> bool:
            is_here = (one.partition, one.base) == (at.partition, at.base)
            return is_here and one.is_of_records and one.position < at.position

        return [one for one in self.damages if not is_found_again(one)] + at.found


def read_scrubbed(log_dir: Path) -> Scrubbed:
    """Read a log directory's `mpbroker.scrub`; `Scrubbed()` if missing. Raises CheckpointCorrupt, OSError."""
    path = log_dir / SCRUB
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Scrubbed()
    head, _, body = data.partition(b"\n")
    if head != _head_of(body):
        raise CheckpointCorrupt(f"{path} is damaged: its first line does not match the rest")
    try:
        return msgspec.json.decode(body, type=Scrubbed)
    except msgspec.MsgspecError as error:
        raise CheckpointCorrupt(f"{path} is malformed: {error}") from error


def write_scrubbed(log_dir: Path, scrubbed: Scrubbed) -> None:
    """Replace a log directory's `mpbroker.scrub`, durably. Raises OSError."""
    body = msgspec.json.encode(scrubbed) + b"\n"
    write_whole(log_dir / SCRUB, _head_of(body) + b"\n" + body)


def _head_of(body: bytes) -> bytes:
    return f"{SCRUB} {VERSION} {checksum(body):08x}".encode()


def damages_of(directory: Path) -> list[Damage]:
    """Return the damages of the partition in a directory. Raises CheckpointCorrupt, OSError."""
    return [one for one in read_scrubbed(directory.parent).all_damages() if one.partition == directory.name]
