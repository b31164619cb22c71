"""Deletes objects of segments that no ledger entry names: those of uploads that were given up or killed.

They are a day old by the store's clock before they go, so that an upload under way is never taken for one.
Objects with other names than a segment's are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from mpbroker.remote.cuts.manifest import parse_cut_object
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectInfo, ObjectStore, delete_checked
from mpbroker.remote.tier.store_clock import store_ms

ORPHAN_MS: Final = 24 * 3600 * 1000


def collect(
    store: ObjectStore,
    state: RemoteState,
    spared: Container[bytes],
    may_delete: Callable[[], object],
    give_way: Callable[[], object],
) -> int:
    """Delete the orphans; return how many objects were deleted.

    `state` is all of the ledger: no upload is under way. `spared` are bundles of the cut that is being made:
    over a slow line that takes days, and they are named in the end. `may_delete` is called before each
    request that deletes, and raises if the ledger is no longer ours. Raises StoreError, and what the two
    raise.
    """
    before_ms = store_ms(store) - ORPHAN_MS
    doomed: list[str] = []
    for found in orphans(store, state):
        give_way()
        if found.modified_ms < before_ms and parse_cut_object(found.name) not in spared:
            doomed.append(found.name)
    delete_checked(store, doomed, may_delete)
    return len(doomed)


def orphans(store: ObjectStore, state: RemoteState) -> Iterator[ObjectInfo]:
    """Yield the objects of segments and cuts that the ledger does not name, of any age. Raises StoreError."""
    named = {one.segment_id for segments in list(state.segments.values()) for one in segments}
    named |= state.removed.keys()
    named |= state.bundles.keys() | {one.event.cut_id for one in state.cuts}
    named |= {object_id for _, object_id in list(state.shipped)}
    for found in store.list(""):
        objects = parse_object(found.name)
        one = parse_cut_object(found.name) if objects is None else objects.segment_id
        if one is not None and one not in named:
            yield found
