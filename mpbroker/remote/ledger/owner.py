"""The file `mpbroker.remote.owner` in the first log directory: who owns the ledger for this broker.

JSON, see `Owner`. It is on disk before the ledger has an entry of what it names, so that an entry whose start
is not in it was written by another broker: one with a copy of this disk.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from mpbroker.remote.ledger.spare import write_or_spare
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.names import REMOTE_OWNER


class OwnerDamaged(Exception):
    """Raised for a file that cannot be read; the message names it."""


class Owner(msgspec.Struct):
    """`nonce` is the owner in the headers of entries. `generation` counts the owners of the ledger.

    `last_seq` is the last entry that may be in the ledger; all before it are. `starts` are the tier processes
    that may have written entries since the last one that is known to have begun, and that one. `standbys`
    are the brokers that the ledger may name as such: they are here first. `acks` is mpbroker.remote.acks.
    """

    nonce: str
    generation: int = 1
    last_seq: int = 0
    starts: list[str] = []
    standbys: list[int] = []
    acks: str = "local"


def read_owner(directory: Path) -> Owner | None:
    """Return what the file says, None if there is none. Raises OwnerDamaged, OSError."""
    path = directory / REMOTE_OWNER
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise OwnerDamaged(f"{path} is damaged: {error}: restore it from a backup") from error


class OwnerFile:
    """The owner, kept in a log directory."""

    def __init__(self, directory: Path) -> None:
        """Read the file, or make it. Raises OwnerDamaged, OSError."""
        self.path = directory / REMOTE_OWNER
        found = read_owner(directory)
        self.owner = found or Owner(new_nonce())
        if found is None:
            self.save()

    def announce(self, seq: int) -> None:
        """Say that entry `seq` may be in the ledger from now on. Raises StoreError; then it must not be."""
        before = self.owner.last_seq
        if seq == before:
            return
        self.owner.last_seq = seq
        try:
            self.save()
        except OSError as error:
            self.owner.last_seq = before
            raise StoreError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def save(self) -> None:
        """Replace the file as `save_owner` does."""
        save_owner(self.path.parent, self.owner)


def save_owner(directory: Path, owner: Owner) -> None:
    """Make or replace the owner's file in a log directory, durably, also on a full disk. Raises OSError."""
    write_or_spare(directory / REMOTE_OWNER, msgspec.json.encode(owner))


def new_nonce() -> str:
    return uuid.uuid4().hex
