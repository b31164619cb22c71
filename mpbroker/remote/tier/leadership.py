"""Decides until when this broker leads: its standbys, its lease, and the leading word.

Without a standby there is no lease, and the broker leads always. A standby is named in the owner's file
first, then in the ledger. From the first try to name it the broker leads only until its lease runs out, since
the try may be in although it failed. A standby that goes is removed from the ledger first, then from the
file.

Replicas, which serve reads, are in the file `mpbroker.nodes` alone: nothing depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import ALWAYS, NEVER, Leading
from mpbroker.ipc.nodes import NODES_FILE, Node, Nodes, write_nodes
from mpbroker.ipc.process import EXIT_STANDBY, EXIT_TAKEN_OVER, FatalError
from mpbroker.remote.ledger.events import Event, StandbyGone, StandbySet, Started, TakenOver
from mpbroker.remote.ledger.lease import OwnerLease
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.registrations import Registration
from shm.clock import boot_ns
from shm.counters import CounterPage

# A standby whose object has not changed for so long is gone.
SILENT_NS: Final = 24 * 3600 * 1_000_000_000
_NS_PER_MS: Final = 1_000_000
log = logging.getLogger("mpbroker.remote")


class Leadership:
    """Writes the leading word and the file `mpbroker.nodes`. The thread of the ledger calls all methods.

    `lowered()` is called when the broker leads no longer, `replicated(ms)` with the wall time before which
    all replicas have what was written (0: there is none). Call `begin` first.
    """

    def __init__(
        self,
        leading: Leading,
        counters: CounterPage,
        lowered: Callable[[], object] = lambda: None,
        clock_ns: Callable[[], int] = boot_ns,
        replicated: Callable[[int], object] = lambda _ms: None,
    ) -> None:
        self._replicated = replicated
        self._replicas: list[Registration] = []
        self._leading = leading
        self._counters = counters
        self._lowered = lowered
        self.clock_ns = clock_ns
        # By the name of the object: its beat, and when that was first seen.
        self._beats: dict[str, tuple[int, int]] = {}
        self._nodes: Nodes | None = None
        # The supervisor has written the word, or a predecessor.
        self._count(leading.until_ns)

    def begin(self, ledger: Ledger, started: Started) -> None:
        """Lead, because the entry of this start is in the ledger. Raises OSError."""
        self._ledger, self._file, self._started = ledger, ledger.owner_file, started
        self._lease = OwnerLease(started.lease_ms, self.clock_ns)
        # A try of an earlier start to name one cannot come late any more.
        self._set_standbys(ledger.state.standbys)
        self.renewed()
        self._write_nodes()

    @property
    def is_awaited(self) -> bool:
        """Return whether clients are, or will be, refused without an entry of this start."""
        return self._leading.until_ns != ALWAYS

    @property
    def has_lease(self) -> bool:
        """Return whether the ledger names a standby, or may do so."""
        return bool(self._file.owner.standbys)

    @property
    def has_replicas(self) -> bool:
        return bool(self._replicas)

    @property
    def is_due(self) -> bool:
        """Return whether the ledger needs an entry for the lease."""
        return self.has_lease and self._lease.is_due()

    def renewed(self) -> None:
        """Begin the lease anew, by the entry that is now the ledger's last."""
        self._lease.renewed(self._ledger.tried_ns)
        if self._ledger.fenced is None:
            self._write_word()

    def lead_alone(self) -> None:
        """Lead without an entry of this start, because nobody stands by."""
        self._lead_until(ALWAYS)

    def lost(self, fenced: Fenced) -> None:
        """Lead no longer, if another broker leads or may lead."""
        if fenced.leader is not None or self.has_lease:
            self._lead_until(NEVER)
            self._lowered()

    def follow(
        self, found: Iterable[Registration], append: Callable[[Sequence[Event]], None], started: Started
    ) -> Sequence[int]:
        """Have the ledger name those who stand by, and no others; return who is gone.

        `append` puts events into the ledger. `started` is what it is to say of this broker. Raises OSError,
        and what `append` raises: then call it again.
        """
        news, self._started = [started] if started != self._started else [], started
        append(news)
        there = list(filter(self._is_there, found))
        wanted = {one.broker_id: _standby(one) for one in there if not one.is_replica}
        self._replicas = [one for one in there if one.is_replica and one.broker_id not in wanted]
        named = self._ledger.state.standbys
        gone = [broker_id for broker_id in named if broker_id not in wanted]
        events: list[Event] = [one for one in wanted.values() if named.get(one.broker_id) != one]
        events += map(StandbyGone, gone)
        if events:
            if not self.has_lease:
                # The lease begins as if this try were in.
                self._lease.renewed(self.clock_ns())
            self._set_standbys({*self._file.owner.standbys, *wanted})
            self._write_word()
            append(events)
            for event in events:
                log.info("%s", _told(event))
        self._set_standbys(self._ledger.state.standbys)
        self._write_word()
        self._write_nodes()
        generation = self._file.owner.generation
        self._replicated(
            min((one.readable_ms if one.generation == generation else 0 for one in self._replicas), default=0)
        )
        return gone

    def _is_there(self, found: Registration) -> bool:
        """Return whether the object has changed within SILENT_NS, and is not this broker's own.

        That of a replica has to change within a lease.
        """
        now_ns = self.clock_ns()
        beat, since_ns = self._beats.get(found.name, (None, 0))
        if beat != found.beat:
            self._beats[found.name] = found.beat, (since_ns := now_ns)
        silent_ns = self._started.lease_ms * _NS_PER_MS if found.is_replica else SILENT_NS
        return found.broker_id != self._started.broker_id and now_ns - since_ns < silent_ns

    def _set_standbys(self, broker_ids: Iterable[int]) -> None:
        owner, before = self._file.owner, self._file.owner.standbys
        owner.standbys = sorted(broker_ids)
        if owner.standbys != before:
            try:
                self._file.save()
            except OSError:
                owner.standbys = before
                raise

    def _write_word(self) -> None:
        self._lead_until(self._lease.valid_until_ns if self.has_lease else ALWAYS)
        self._counters.set(Counter.COUNT_REMOTE_STANDBYS, len(self._file.owner.standbys))

    def _lead_until(self, until_ns: int) -> None:
        self._leading.until_ns = until_ns
        self._count(until_ns)

    def _count(self, until_ns: int) -> None:
        until_ms = 0 if until_ns == ALWAYS else max(until_ns // _NS_PER_MS, 1)
        self._counters.set(Counter.COUNT_REMOTE_LEASE_UNTIL_MS, until_ms)

    def _write_nodes(self) -> None:
        """Have the coordinator tell clients of the standbys."""
        started, directory = self._started, self._file.path.parent
        standbys = self._ledger.state.standbys.values()
        me = Node(started.broker_id, started.rack, started.listeners)
        others = [Node(one.broker_id, one.rack, one.listeners) for one in standbys]
        others += [Node(one.broker_id, one.rack, one.listeners, True) for one in self._replicas]
        nodes = Nodes(started.broker_id, self._file.owner.generation, [me, *others])
        if nodes == self._nodes:
            return
        if others:
            write_nodes(directory, nodes)
        else:
            (directory / NODES_FILE).unlink(missing_ok=True)
        self._nodes = nodes


def _standby(found: Registration) -> StandbySet:
    return StandbySet(found.broker_id, found.host, found.rack, found.listeners)


def _told(event: Event) -> str:
    """Return the line of the log about a standby that came or went."""
    if isinstance(event, StandbySet):
        return f"broker {event.broker_id} on {event.host} stands by: this broker leads while its lease lasts"
    assert isinstance(event, StandbyGone)
    return f"broker {event.broker_id} stands by no longer"


def taken_over(leader: Started | TakenOver, broker_id: int) -> FatalError:
    """Return the error that ends this broker, because a standby or a restored broker owns the ledger."""
    who = f"broker {leader.broker_id} on {leader.host} has taken over"
    if leader.broker_id != broker_id:
        return FatalError(
            f"{who}: nothing is served any more, and this broker becomes its standby. What it accepted and "
            "had not brought into the object store stays in its log directories, which are kept",
            EXIT_STANDBY,
        )
    return FatalError(
        f"{who}, restored from the object store: nothing is served any more. What this broker accepted since "
        "the restored cut is in its log directories alone: keep them until nothing is missed. A standby "
        "here needs empty log directories and a node.id of its own: mpbroker serve --standby",
        EXIT_TAKEN_OVER,
    )
