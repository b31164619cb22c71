"""The objects of a cut.

    mpbroker/cuts/<id of the cut>         its manifest: JSON, see `CutManifest`, compressed by zstd
    mpbroker/bundles/<id of the bundle>   bytes of files, one after the other
    mpbroker/shipped/<id>                 bytes of an event `Shipped`, where they are many

Ids are 16 random bytes, in hexadecimal digits. A file is the sum of its pieces, each of which lies in some
bundle: that of this cut, or one that an earlier cut has made. The ledger's event has the manifest's digest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

import cramjam
import msgspec

from mpbroker.remote.ledger.entries import LedgerDamaged, digest
from mpbroker.remote.ledger.events import CutTaken

CUT_FORMAT: Final = 1
CUTS: Final = "mpbroker/cuts/"
BUNDLES: Final = "mpbroker/bundles/"
SHIPPED: Final = "mpbroker/shipped/"
_ZSTD_LEVEL: Final = 3
_ID = re.compile(r"[0-9a-f]{32}").fullmatch


class Piece(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes of a file: `length` bytes of a bundle from `position` on. `crc` is their CRC-32C."""

    bundle: bytes
    position: int
    length: int
    crc: int


class CutFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a cut. `path` begins with the number of its log directory, as in `0/orders-3/….log`.

    `inode` and `changed_ns` (ctime) are the original's; `changed_ns` is 0 if that had just changed.
    `tail_crc` is the CRC-32C of the last bytes (see `bundles`).
    """

    path: str
    size: int
    inode: int
    changed_ns: int
    tail_crc: int
    pieces: tuple[Piece, ...]


class CutPartition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A partition of a cut with segments in the ledger. `directory` is as in `CutFile.path`.

    `remote_end` is where those segments end that belong to the cut.
    """

    directory: str
    topic_id: bytes
    partition: int
    remote_end: int


class CutEnd(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Up to where a partition of a cut may be read. `directory` is as in `CutFile.path`.

    That is what the broker had published of it at the instant. Its files may have records above that.
    """

    directory: str
    topic_id: bytes
    partition: int
    log_start: int
    high_watermark: int
    last_stable: int


class CutManifest(msgspec.Struct, frozen=True):
    """A cut. `log_dirs` are the paths of the directories 0, 1 …; `bundles` are sizes by ids in hexadecimal.

    `directories` are those of all partitions, `remote` the partitions that have segments in the ledger.
    `ends` are of the partitions that were open; older versions wrote none. `boot_id` is the machine's start
    during which it was made: a later one may have lost what was not synced.
    """

    cluster_id: str
    broker_id: int
    boot_id: str
    taken_ms: int
    log_dirs: list[str]
    directories: list[str]
    remote: list[CutPartition]
    files: list[CutFile]
    bundles: dict[str, int]
    format: int = CUT_FORMAT
    ends: list[CutEnd] = []

    @property
    def size_bytes(self) -> int:
        """Return how many bytes all files have."""
        return sum(one.size for one in self.files)


def log_dir_of(path: str) -> int:
    """Return the number of the log directory in a path of a cut."""
    return int(path.partition("/")[0])


def new_id() -> bytes:
    return uuid.uuid4().bytes


def cut_name(cut_id: bytes) -> str:
    return CUTS + cut_id.hex()


def bundle_name(bundle_id: bytes) -> str:
    return BUNDLES + bundle_id.hex()


def shipped_name(object_id: bytes) -> str:
    return SHIPPED + object_id.hex()


def parse_cut_object(name: str) -> bytes | None:
    """Return the id of the cut, bundle or shipped bytes that an object is; None if it is of another kind."""
    for prefix in (CUTS, BUNDLES, SHIPPED):
        if name.startswith(prefix) and _ID(name.removeprefix(prefix)):
            return bytes.fromhex(name.removeprefix(prefix))
    return None


def live_bytes(files: Iterable[CutFile]) -> Mapping[bytes, int]:
    """Return, for each bundle that these files name, how many of its bytes they name."""
    found: dict[bytes, int] = {}
    for file in files:
        for piece in file.pieces:
            found[piece.bundle] = found.get(piece.bundle, 0) + piece.length
    return found


def encode_manifest(manifest: CutManifest) -> bytes:
    return bytes(cramjam.zstd.compress(msgspec.json.encode(manifest), _ZSTD_LEVEL))


def decode_manifest(event: CutTaken, packed: bytes) -> CutManifest:
    """Decode the manifest that an event names. Raises LedgerDamaged."""
    name = cut_name(event.cut_id)
    if digest(packed) != event.digest:
        raise LedgerDamaged(f"{name} is damaged: its digest is not the one in the ledger")
    try:
        manifest = msgspec.json.decode(bytes(cramjam.zstd.decompress(packed)), type=CutManifest)
    except (msgspec.DecodeError, cramjam.DecompressionError) as error:
        raise LedgerDamaged(f"{name} cannot be read: {error}") from error
    if manifest.format != CUT_FORMAT:
        raise LedgerDamaged(
            f"{name} has format {manifest.format}, this version reads {CUT_FORMAT}: upgrade mpbroker"
        )
    return manifest
