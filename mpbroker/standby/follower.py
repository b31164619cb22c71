"""Follows a ledger: reads new entries, and brings the mirror to the newest cut and what was shipped since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mpbroker.ipc.mirror import ReadPartition
from mpbroker.ipc.standby_lag import StandbyLag
from mpbroker.remote.cuts.manifest import cut_name, decode_manifest
from mpbroker.remote.ledger.entries import decode_entry, decode_header, entry_name
from mpbroker.remote.ledger.events import CutTaken, Shipped
from mpbroker.remote.ledger.lease import StandbyWatch
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.remote.restore.plan import Plan
from mpbroker.remote.restore.shipped import ShippedFiles
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError
from mpbroker.standby.replica import Replica
from mpbroker.storage.names import METADATA_DIRECTORY
from shm.clock import boot_ns

# After so long without a look the next entry may be trimmed, although later ones are there.
SLEPT_NS: Final = 600 * 10**9


class CannotFollow(Exception):
    """Raised where this ledger cannot be followed with these settings; the message says what to change."""


class Follower:
    """The mirror of a ledger. `objects` downloads, and may take longer than `reader`, which asks for entries.

    `version` grows with each change of the mirror's metadata log. With a `replica` the mirror has the newest
    cut and nothing that was shipped since: consumers read it.
    """

    def __init__(
        self,
        reader: LedgerReader,
        objects: ObjectStore,
        log_dirs: Sequence[Path],
        mirror: Mirror,
        watch: StandbyWatch,
        clock_ns: Callable[[], int] = boot_ns,
        replica: Replica | None = None,
    ) -> None:
        self.reader = reader
        self.version = 0
        self._replica = replica
        # The generation of the owner that made the mirror's cut, and the instant of the cut: that owner may
        # send consumers here for what was written before.
        self.readable_of = (0, 0)
        # The cut that the mirror has, and the last entry whose shipped bytes it has.
        self.cut: CutTaken | None = None
        self._shipped_seq = 0
        self._shipped = ShippedFiles(objects, log_dirs)
        self._objects = objects
        self._log_dirs = log_dirs
        self._mirror = mirror
        self._watch = watch
        self._clock_ns = clock_ns
        # Entries that were read and are not applied yet, by number.
        self._bodies: dict[int, bytes] = {}
        self._is_applied = False
        self._applied_seq = 0
        # When the mirror had all that the ledger had.
        self._caught_up_ns = 0
        # When the last request was sent that found no further entry.
        self._read_ns = 0

    def poll(self) -> None:
        """Read new entries, and apply them to the mirror. After a StoreError or OSError call it again.

        Raises CannotFollow, LedgerDamaged.
        """
        try:
            asked_ns = self._read()
            if self._is_applied:
                self._caught_up_ns = asked_ns
                self._watch.absent(asked_ns)
                return
            self._apply()
            self._caught_up_ns = asked_ns
        except (StoreError, OSError):
            self._watch.failed()
            raise
        self._watch.applied(self._clock_ns())

    @property
    def lag(self) -> StandbyLag:
        """Return how far the mirror is behind the ledger."""
        entries, cut_ms = self.reader.seq - self._applied_seq, 0 if self.cut is None else self.cut.taken_ms
        return StandbyLag(self._caught_up_ns, entries, self._mirror.left_bytes, cut_ms)

    def look_for_more(self) -> bool:
        """Read new entries, also behind trimmed ones; return whether there were any.

        The next poll applies them. Raises as `poll`.
        """
        before = self.reader.seq
        self.reader.read_to_end()
        if self.reader.seq == before:
            return False
        self._is_applied = False
        return True

    def complete(self, plan: Plan) -> Plan:
        """Bring the mirror to the end of the ledger; return the plan of its cut with all directories.

        Do not use this object afterwards: the directories will be changed beyond the mirror. Raises as
        `poll`.
        """
        self._apply()
        self._shipped.finish()
        directories = [*plan.manifest.directories, *self._shipped.made]
        return plan._replace(manifest=msgspec.structs.replace(plan.manifest, directories=directories))

    @property
    def partitions(self) -> list[ReadPartition] | None:
        """Return what consumers may read; None without a replica. A new owner has to make a cut first."""
        if self._replica is None:
            return None
        return self._replica.partitions if self.readable_of[0] == self.reader.generation else []

    def may_claim(self) -> bool:
        """Return whether the ledger may be claimed: there is a mirror, and the owner's lease has run out."""
        return self.cut is not None and self._watch.may_claim(self.reader.state)

    def _read(self) -> int:
        """Read entries until there are no more; return when the store was asked for the last time."""
        reader = self.reader
        if not reader.seq or self._clock_ns() - self._read_ns > SLEPT_NS:
            self.look_for_more()
        while True:
            asked_ns, seq = self._clock_ns(), reader.seq + 1
            try:
                body = reader.store.get(entry_name(seq))
            except ObjectMissing:
                self._read_ns = asked_ns
                return asked_ns
            self._is_applied = False
            reader.follow(seq, body)
            self._bodies[seq] = body

    def _apply(self) -> None:
        """Bring the mirror to the newest cut, and to what was shipped after it. Raises as `poll`."""
        cuts = self.reader.state.cuts
        if cuts:
            if self.cut is None or cuts[-1].event.cut_id != self.cut.cut_id:
                self._apply_cut(cuts[-1].event)
            if self._replica is None:
                self._apply_shipped()
        self._bodies.clear()
        self._is_applied, self._applied_seq = True, self.reader.seq

    def _apply_cut(self, cut: CutTaken) -> None:
        self.cut = None
        try:
            manifest = decode_manifest(cut, self._objects.get(cut_name(cut.cut_id)))
            if len(manifest.log_dirs) != len(self._log_dirs):
                raise CannotFollow(
                    f"log.dirs has {len(self._log_dirs)} directories, and the owner has "
                    f"{len(manifest.log_dirs)} ({', '.join(manifest.log_dirs)}): name as many"
                )
            self._mirror.apply(manifest)
        except ObjectMissing:
            # The cut may have expired: the next poll takes the newest one.
            self.reader.read_to_end()
            raise
        if self._replica is not None:
            self._replica.update(manifest)
            self.readable_of = self._generation_of(cut), manifest.taken_ms
        self.cut = cut
        self._shipped_seq = cut.since or cut.after
        self._shipped = ShippedFiles(self._objects, self._log_dirs)
        self.version += 1

    def _generation_of(self, cut: CutTaken) -> int:
        """Return the generation of the owner that made a cut. Raises LedgerDamaged, StoreError."""
        return decode_header(cut.after, self.reader.store.get(entry_name(cut.after))).generation

    def _apply_shipped(self) -> None:
        """Apply what was shipped after the newest cut, in order."""
        numbers = self.reader.state.shipped_numbers
        while self._shipped_seq < self.reader.seq:
            seq = self._shipped_seq + 1
            body = self._bodies.get(seq) or self.reader.store.get(entry_name(seq))
            for event in decode_entry(seq, body).events:
                if isinstance(event, Shipped) and event.number in numbers:
                    for path, position in self._shipped.apply(event):
                        self._mirror.touched(path, position)
                        self.version += path.split("/")[1] == METADATA_DIRECTORY
            self._shipped_seq = seq
