"""Brings segments back that were removed after a cut, and whose objects are still there.

The owner before may be about to delete them, and a request of it may be applied late. So they are copied to
objects with new ids, before anything names these. If nobody ever does, the collector deletes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from msgspec.structs import replace

from mpbroker.records.batch import checksum
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.restore.plan import Plan
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError

_READ_BYTES = 16 << 20


def revived(store: ObjectStore, plan: Plan) -> Plan:
    """Copy what a plan can revive; return the plan with the copies among its segments.

    Segments that were deleted meanwhile are left out, and those before them. Raises StoreError.
    """
    segments, removed = dict(plan.segments), plan.removed
    for directory, some in plan.revivable.items():
        copies: list[SegmentAdded] = []
        for one in reversed(some):
            try:
                copies.insert(0, _copied(store, one, plan.manifest.broker_id, plan.cut.taken_ms))
            except ObjectMissing:
                break
        segments[directory] = [*copies, *segments[directory]]
        removed -= len(copies)
    return plan._replace(segments=segments, removed=removed, revivable={})


def _copied(store: ObjectStore, one: SegmentAdded, broker_id: int, time_ms: int) -> SegmentAdded:
    copy = replace(one, segment_id=uuid.uuid4().bytes)
    before, after = one.objects, copy.objects
    store.put(after.log, _checked(store, before.log, one.size, one.log_crc), one.size)
    indexes_size = sum(one.index_sizes)
    pieces = _checked(store, before.indexes, indexes_size, one.indexes_crc)
    store.put(after.indexes, pieces, indexes_size)
    manifest = copy.manifest(broker_id, time_ms)
    store.put(after.manifest, [manifest], len(manifest))
    return copy


def _checked(store: ObjectStore, name: str, size: int, crc: int | None) -> Iterator[bytes]:
    """Yield the bytes of an object. Raises StoreError if they have another checksum; None: it is unknown."""
    found = 0
    for start in range(0, size, _READ_BYTES):
        data = store.get(name, start, min(_READ_BYTES, size - start))
        found = checksum(data, found) if data else found
        yield data
    if crc is not None and found != crc:
        raise StoreError(f"{name} is damaged: its checksum is not the ledger's")
