"""Listeners in shared memory: the counts of each listener, and the listeners added while the broker runs.

A listener keeps its number for as long as the broker runs; no other listener gets the number. It is the
listener's index in the configuration, or the next free number if it was added later. Every process knows the
configured listeners from its start. The supervisor writes an added listener into the table before any process
gets a connection of that listener.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from mpbroker.config.listeners import MAX_LISTENERS as MAX_LISTENERS
from mpbroker.config.listeners import Listener
from shm.word import Words

RECORD_BYTES = 2048
LISTENERS_BYTES = MAX_LISTENERS * RECORD_BYTES


class ListenerCount(IntEnum):
    """Indices of a listener's counts. The acceptor that serves the listener writes them."""

    STATE = 0  # a ListenerState
    ACCEPTED = 1  # connections handed to a processor
    OPEN = 2  # connections now, as the limits count them
    BLOCKED_NS = 3  # waited for a slot, a rate or a processor with room (Kafka: AcceptorBlockedPercent)
    REFUSED_PER_IP = 4  # refused by max.connections.per.ip
    THROTTLED = 5  # delayed by the rate of the broker or the listener …
    THROTTLED_MS = 6  # … and the sum of their delays
    THROTTLED_IP = 7  # closed after a delay because of the rate of their address …
    THROTTLED_IP_MS = 8
    ACCEPT_ERRORS = 9
    RATE_MILLI = 10  # connections a second * 1000, over the quota window
    BROKER_RATE_MILLI = 11  # the same for all listeners of the same acceptor
    CONTROL_PLANE = 12  # 1: a listener of the control plane


class ListenerState(IntEnum):
    NONE = 0
    ACCEPTING = 1
    REMOVED = 2


# The listener's name follows the counts, padded with zeros.
NAME_AT = 128
COUNTS_BYTES = 256
assert 8 * len(ListenerCount) <= NAME_AT


class ListenerCounts:
    """One listener's counts and name. A restarted acceptor continues the counts."""

    def __init__(self, block: memoryview) -> None:
        self._words = Words(block)
        self._name = block[NAME_AT:COUNTS_BYTES]

    def introduce(self, name: str, *, control_plane: bool) -> None:
        """Write the listener's name and plane. Call it before the listener's state becomes ACCEPTING.

        A restarted acceptor writes the same values again.
        """
        text = name.encode()[: COUNTS_BYTES - NAME_AT]
        self._name[: len(text)] = text
        self.set(ListenerCount.CONTROL_PLANE, int(control_plane))

    @property
    def name(self) -> str:
        return bytes(self._name).rstrip(b"\0").decode("utf-8", "replace")

    def get(self, count: ListenerCount) -> int:
        return self._words.load(count)

    def set(self, count: ListenerCount, value: int) -> None:
        self._words.store(count, value)

    def add(self, count: ListenerCount, amount: int = 1) -> None:
        self._words.store(count, self._words.load(count) + amount)


class AddedListener(msgspec.Struct, frozen=True):
    """A listener, and the address that it advertises; None if it advertises its own address."""

    listener: Listener
    advertised: Listener | None = None


class ListenerTable:
    """The table of the listeners that were added while the broker runs.

    A record has the length of a JSON text, then the text. `put` writes the length last. The supervisor writes
    the record of a listener before any other process knows the listener's number.
    """

    def __init__(self, block: memoryview) -> None:
        self._block = block

    def put(self, number: int, added: AddedListener) -> None:
        """Write the record of a listener. Raises ValueError if the record is too large."""
        data = msgspec.json.encode(added)
        if len(data) > RECORD_BYTES - 8:
            raise ValueError(f"listener {added.listener.name}: its addresses are too long")
        at = number * RECORD_BYTES
        self._block[at + 8 : at + 8 + len(data)] = data
        Words(self._block[at : at + 8]).store(0, len(data))

    def get(self, number: int) -> AddedListener:
        """Return the listener with this number. Raises LookupError if no added listener has the number."""
        at = number * RECORD_BYTES
        length = Words(self._block[at : at + 8]).load(0) if 0 <= number < MAX_LISTENERS else 0
        if not length:
            raise LookupError(f"there is no listener number {number}")
        return msgspec.json.decode(bytes(self._block[at + 8 : at + 8 + length]), type=AddedListener)
