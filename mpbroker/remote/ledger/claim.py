"""Claims a ledger for another owner: one entry, the first of the next generation.

It follows the last entry of the former owner. That owner's next create fails, because the object is there,
with other bytes. So all that it has put into the ledger is known, and it can put in nothing more.

A create may be applied although it failed, and long after that. So a standby has the bytes of its claim on
disk before the store can have them, and tries these bytes, and no others, until the ledger has them or others
in their place. A claim that a later start finds in the ledger is won.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpbroker.remote.ledger.entries import LedgerDamaged, Writer, decode_header, encode_entry, entry_name
from mpbroker.remote.ledger.events import Event
from mpbroker.remote.ledger.owner import OwnerDamaged, new_nonce
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.storage.checkpoints import fsync_directory, write_whole
from mpbroker.storage.names import REMOTE_CLAIM
from shm.clock import wall_ms


class Claim(NamedTuple):
    """The entry, and the owner that it makes."""

    writer: Writer
    seq: int
    body: bytes


class ClaimFile:
    """The claim of a standby, in its first log directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / REMOTE_CLAIM

    def read(self) -> Claim | None:
        """Return the claim, which may be in the ledger; None without one. Raises OwnerDamaged, OSError."""
        try:
            seq, _, body = self.path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            header = decode_header(int(seq), body)
        except (ValueError, LedgerDamaged) as error:
            raise OwnerDamaged(f"{self.path} is damaged: {error}: restore it from a backup") from error
        return Claim(Writer(header.generation, header.owner, header.start), header.seq, body)

    def write(self, claim: Claim) -> None:
        """Write a claim durably, before it is tried. Raises OSError; then it must not be tried."""
        write_whole(self.path, b"%d\n%b" % (claim.seq, claim.body))

    def remove(self) -> None:
        """Remove the file: the claim is lost, or the owner's file says that it is won. Raises OSError."""
        self.path.unlink(missing_ok=True)
        fsync_directory(self.path.parent)


def new_claim(reader: LedgerReader, events: Sequence[Event]) -> Claim:
    """Make the entry that follows what was read. The first of `events` is TakenOver.

    Raises EventRefused if the ledger could not be read any more with these events.
    """
    reader.state.check(events)
    writer = Writer(reader.generation + 1, new_nonce(), new_nonce())
    seq = reader.seq + 1
    # Objects of segments that it removes are deleted some time after `time_ms`, and this clock may be behind.
    time_ms = max(wall_ms(), 0 if reader.last is None else reader.last.time_ms)
    return Claim(writer, seq, encode_entry(writer, seq, reader.digest, time_ms, events))


def settle(reader: LedgerReader, claim: Claim) -> bool:
    """Have the ledger decide about a claim, and read it to its end; return whether its owner owns it now.

    Raises StoreError: then the claim may be in, and a further call goes on with it. Raises LedgerDamaged.
    """
    reader.read_to_end()
    if reader.seq == claim.seq - 1:
        # Whatever is there instead is read now, too, and what came since.
        reader.store.create(entry_name(claim.seq), claim.body)
        reader.read_to_end()
    # The owner's name was made for this claim alone.
    return reader.last is not None and reader.last.owner == claim.writer.owner
