"""Finds out whether a catalog of files is still valid, from the memory of the broker that runs there."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mpbroker.reading.errors import FilesUnavailable
from mpbroker.reading.local import LocalCatalog
from mpbroker.reading.log_dirs import running_broker
from mpbroker.reading.options import TopicPartition
from shm.table import SlotTable

# Asking the kernel whether a process lives is ten times as dear as the rest.
_ALIVE_FOR_S = 0.1
# A partition that was just created is looked for again after so long.
_UNSERVED_FOR_S = 0.1


class State(NamedTuple):
    """A value that stays equal as long as nothing is published, created, deleted or moved."""

    directories: tuple[int, ...]
    versions: tuple[bytes, ...]


class Watch:
    """Watches some partitions of a catalog, and the directories that others may appear in."""

    def __init__(self, catalog: LocalCatalog, wanted: Iterable[TopicPartition]) -> None:
        self._catalog = catalog
        self._brokers = catalog.brokers
        # The wanted slots of each broker's table, for one native look at all of them.
        self._slots: dict[SlotTable, array[int]] = {}
        for table, number in catalog.slots(wanted):
            self._slots.setdefault(table, array("Q")).append(number)
        self._has_unserved = bool(catalog.unserved)
        self._made_at = time.monotonic()
        self._alive_until = 0.0

    @property
    def is_served(self) -> bool:
        """Return whether the brokers that the catalog was read from still run."""
        if time.monotonic() < self._alive_until:
            return True
        if not all(broker is not None and broker.is_running() for broker in self._brokers.values()):
            return False
        self._alive_until = time.monotonic() + _ALIVE_FOR_S
        return True

    def finds_broker(self) -> bool:
        """Return whether brokers run on all directories now; one that is starting does not count yet."""
        try:
            return all(running_broker(Path(name), patience_s=0) is not None for name in self._brokers)
        except FilesUnavailable:
            return False

    @property
    def is_due(self) -> bool:
        """Return whether to look again though nothing has changed, because a partition was being created."""
        return self._has_unserved and time.monotonic() - self._made_at > _UNSERVED_FOR_S

    def state(self) -> State:
        """Return a state that changes when something is published, created or moved. Raises OSError."""
        return State(self._catalog.changes(), self.versions())

    def versions(self) -> tuple[bytes, ...]:
        """Return versions that change when a broker publishes something new of a wanted partition."""
        return tuple(table.versions(slots) for table, slots in self._slots.items())
