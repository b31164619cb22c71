"""Offsets of transactions that are pending."""

from __future__ import annotations

from mpbroker.coordinator.groups.offsets import PendingOffsets, TransactionKey
from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue


def test_a_key_in_many_transactions_is_looked_at_without_them() -> None:
    """Check that the cost is bounded.

    A client may have thousands of transactions open, and ask for thousands of keys.
    """

    class Unlooked(TransactionKey):
        def __hash__(self) -> int:
            assert self.producer_id in looked_at
            return super().__hash__()

    looked_at = {1, 2}
    pending = PendingOffsets()
    key, other = OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)
    first, second = Unlooked(0, 1), Unlooked(0, 2)
    pending.add(first, key, OffsetValue(5, -1, "", 0))
    pending.add(second, key, OffsetValue(6, -1, "", 0))
    looked_at.clear()
    assert pending.has(key)
    assert not pending.has(other)
    pending.overtake(key, 1)
    looked_at |= {1, 2}
    assert pending.end(first) == []
    assert [entry[1].offset for entry in pending.end(second)] == [6]
    assert not pending.has(key)
