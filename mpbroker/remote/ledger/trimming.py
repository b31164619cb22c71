"""Deletes entries that nobody reads any more: those below a snapshot that the ledger names.

The ledger names one snapshot a day, and entries are deleted a week later. By then no reader needs them, and
no request that was lost can still be applied. The week is counted by the snapshots that the ledger has named
since.

The first entries of each generation and of each start stay for ever. An owner that has slept since would
create its next entry in their place, and its create fails. All others that create an entry read to the end
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpbroker.remote.ledger.entries import PREFIX, seq_of
from mpbroker.remote.ledger.snapshots import PREFIX as SNAPSHOTS
from mpbroker.remote.ledger.snapshots import snapshot_name
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectStore, delete_checked


def trim(store: ObjectStore, state: RemoteState, may_delete: Callable[[], object]) -> int:
    """Delete what the ledger says may go; return how many objects were deleted.

    `may_delete` is called before each request, and raises if the ledger is no longer ours. Raises StoreError,
    and what that raises.
    """
    doomed = list(_trimmed(store, state))
    delete_checked(store, doomed, may_delete)
    return len(doomed)


def _trimmed(store: ObjectStore, state: RemoteState) -> Iterator[str]:
    # First the snapshots that would begin where entries are missing.
    end = snapshot_name(state.trimmed_before)
    yield from [found.name for found in store.list(SNAPSHOTS) if found.name < end]
    kept = frozenset(state.firsts)
    for found in store.list(PREFIX):
        seq = seq_of(found.name)
        if seq is None or seq in kept:
            continue
        if seq >= state.trimmed_before:
            return
        yield found.name
