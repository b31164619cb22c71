"""Reads objects of the bucket in the option mpbroker.bucket.

Credentials and endpoints come from the environment of the process that reads: no plan, no checkpoint and no
option has them. (`mpbroker.remote.store.bucket` says which variables those are.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

from mpbroker.reading.errors import CorruptLog, OptionError, SourceUnavailable
from mpbroker.reading.plan import StoredBytes
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store

BUCKET: Final = "mpbroker.bucket"
REQUEST_TIMEOUT_MS: Final = 60_000


@cache
def open_bucket(url: str) -> ObjectStore:
    """Open the bucket; later tasks of this process use its connections, too. Raises OptionError."""
    try:
        return open_store(url, REQUEST_TIMEOUT_MS, BUCKET)
    except StoreRefused as error:
        raise OptionError(str(error)) from error


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn errors of a store into SourceUnavailable, and those of its ledger into CorruptLog."""
    try:
        yield
    except StoreError as error:
        raise SourceUnavailable(f"{BUCKET}: {error}") from error
    except LedgerDamaged as error:
        raise CorruptLog(f"{BUCKET}: the ledger cannot be read: {error}") from error


def read_stored(store: ObjectStore, pieces: Sequence[StoredBytes], start: int, end: int) -> bytes:
    """Return the bytes [start, end) of the pieces, one after the other; fewer where they end.

    Raises ObjectMissing, StoreError, and CorruptLog if an object is shorter than it was.
    """
    found, at = [], 0
    for name, position, length in pieces:
        low, high = max(start - at, 0), min(end - at, length)
        at += length
        if low >= high:
            continue
        data = store.get(name, position + low, high - low)
        if len(data) != high - low:
            raise CorruptLog(
                f"{name} has {len(data)} bytes at {position + low}, where {high - low} were written"
            )
        found.append(data)
    return found[0] if len(found) == 1 else b"".join(found)
