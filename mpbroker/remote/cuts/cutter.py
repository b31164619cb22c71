"""Makes cuts: an incremental copy of the log directories in the object store, as of one instant.

    1. Files that have changed are brought into bundles while the broker serves, until little is left.
    2. In a pause of some milliseconds all files are listed, and those that have changed since are opened.
    3. Their new bytes go into bundles, then the manifest into an object.
    4. The ledger gets the event `cut`. Until then nothing that was written has a name.

A kill at any of these steps leaves objects that nobody names; the collector deletes them a day later.

Of a log directory that is offline a cut has what the newest cut has, and what was shipped since: all that is
acknowledged there with mpbroker.remote.acks=ledger.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.table import PartitionFlag, unpack_partition
from mpbroker.remote.cuts.bundles import Bundler, Opened, is_same, recognized, worth_keeping
from mpbroker.remote.cuts.files import APPENDED, Found, Look
from mpbroker.remote.cuts.instant import Broker, CutSkipped, Instant, opened_files
from mpbroker.remote.cuts.manifest import (
    CutEnd,
    CutFile,
    CutManifest,
    CutPartition,
    cut_name,
    decode_manifest,
    encode_manifest,
    log_dir_of,
    new_id,
)
from mpbroker.remote.ledger.entries import LedgerDamaged, digest
from mpbroker.remote.ledger.events import CutsRemoved, CutTaken, Shipped
from mpbroker.remote.ledger.reader import read_entries
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore
from mpbroker.storage.names import REMOTE_CACHE

# The pause begins when no more than this has changed, or after so many passes.
LAST_PASS_BYTES: Final = 32 << 20
LAST_PASS_FILES: Final = 1_000
PASSES_MAX: Final = 4
# Where `forward` works, in a log directory.
_SCRATCH: Final = f"{REMOTE_CACHE}/offline"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger("mpbroker.remote")

Instants = Callable[[RemoteState, Mapping[str, CutFile], Look], Instant]
"""Takes an instant; given the ledger's state, the files that need not be read again, and a look before it."""


Forward = Callable[[ObjectStore, Bundler, CutManifest, Container[int], Sequence[Shipped], Path], CutManifest]
"""Adds shipped rounds to a cut's files of offline log directories (`restore.offline.bring_forward`)."""


class Cut(NamedTuple):
    """A cut whose objects are in the store, for the ledger. `event(after)` is its event after that entry."""

    cut_id: bytes
    manifest: CutManifest
    size: int
    digest: str
    paused_s: float
    shipped: int = 0
    since: int = 0

    def event(self, state: RemoteState, after: int) -> CutTaken:
        named = set(map(bytes.fromhex, self.manifest.bundles))
        there = {one for one, dropped_ms in state.bundles.items() if dropped_ms is None}
        return CutTaken(
            *(self.cut_id, self.manifest.taken_ms, self.size, self.digest, after),
            added=tuple(sorted(named - there)),
            dropped=tuple(sorted(there - named)),
            shipped=self.shipped,
            since=self.since,
        )


class Cutter:
    """Makes the cuts of a broker. `paced(count)` is called for each piece read, and may raise to give up."""

    def __init__(
        self,
        store: ObjectStore,
        broker: Broker,
        identity: tuple[str, int],
        instants: Instants,
        paced: Callable[[int], None],
        forward: Forward,
    ) -> None:
        self._store = store
        self._forward = forward
        self._broker = broker
        self._cluster_id, self._broker_id = identity
        self._instants = instants
        self._paced = paced
        self._boot_id = _BOOT_ID.read_text("ascii").strip()
        # The id of the newest cut, and its manifest if that was read.
        self._newest: tuple[bytes, CutManifest | None] = b"", None
        # What the store has: by path, and the sizes of its bundles by id.
        self._known: dict[str, CutFile] = {}
        self._bundles: dict[bytes, int] = {}
        self._look = Look([], {})
        self._offline: frozenset[int] = frozenset()

    def bundles(self) -> set[bytes]:
        """Return the bundles that the next cut may name, perhaps as the first one. Any thread may ask."""
        return set(self._bundles)

    def remember(self, state: RemoteState) -> None:
        """Learn from the newest cut what the store has. Raises StoreError."""
        for log_dir in self._broker.log_dirs:
            # A predecessor may have been killed.
            shutil.rmtree(log_dir / _SCRATCH, ignore_errors=True)
        self._known, self._bundles = {}, {}
        if not state.cuts:
            return
        event = state.cuts[-1].event
        self._newest = event.cut_id, None
        # Without it all files are read again.
        with suppress(ObjectMissing, LedgerDamaged):
            manifest = decode_manifest(event, self._store.get(cut_name(event.cut_id)))
            self._newest = event.cut_id, manifest
            self._bundles = {bytes.fromhex(one): size for one, size in manifest.bundles.items()}
            is_same_boot = manifest.boot_id == self._boot_id
            self._known = {
                one.path: one for one in (manifest.files if is_same_boot else self._recognized(manifest))
            }

    def _recognized(self, manifest: CutManifest) -> Iterator[CutFile]:
        """Yield the files of a cut that are on this disk, too, although another boot or machine has made it.

        Reading them is cheaper than uploading them again.
        """
        for one in manifest.files:
            self._paced(0)
            number, _, name = one.path.partition("/")
            if name.endswith(APPENDED) and int(number) < len(self._broker.log_dirs):
                found = recognized(one, self._broker.log_dirs[int(number)] / name)
                if found is not None:
                    yield found

    def make(self, state: RemoteState) -> Cut:
        """Make a cut; return it when all its objects are in the store.

        Raises CutSkipped, FileChanged, StoreError, OSError, and what `paced` raises.
        """
        if state.cuts and state.cuts[-1].event.cut_id != self._newest[0]:
            # The ledger has a cut whose entry had no answer.
            self.remember(state)
        self._known = worth_keeping(self._known, self._bundles)
        for _ in range(PASSES_MAX):
            self._look = self._broker.look(state, self._look)
            changed = [one for one in self._look.files() if not is_same(self._known.get(one.path), one)]
            size = sum(one.size - self._size_of(one) for one in changed)
            if size < LAST_PASS_BYTES and len(changed) < LAST_PASS_FILES:
                break
            for start in range(0, len(changed), LAST_PASS_FILES):
                with opened_files(changed[start : start + LAST_PASS_FILES]) as files:
                    self._add(files)
        instant = self._instants(state, self._known, self._look)
        try:
            shipped, before = self._before(state, instant)
            instant = instant._replace(shipped=shipped)
            self._add(instant.opened)
        finally:
            instant.close()
        return self._finished(instant, before)

    def needs(self, state: RemoteState, key: tuple[bytes, int]) -> bool:
        """Return whether a restore of the newest cut needs what the ledger has of a partition.

        The ledger has a cut. True if its manifest was not read.
        """
        cut_id, newest = self._newest
        if newest is None or cut_id != state.cuts[-1].event.cut_id:
            return True
        return any((one.topic_id, one.partition) == key for one in newest.remote)

    def look_anew(self) -> None:
        """Have the next cut list all files, also of partitions without appends."""
        self._look = Look([], {})

    def published(self, cut: Cut) -> None:
        """Note that the ledger has a cut."""
        self._newest = cut.cut_id, cut.manifest
        self._known = {one.path: one for one in cut.manifest.files}
        self._bundles = {bytes.fromhex(one): size for one, size in cut.manifest.bundles.items()}

    def _size_of(self, found: Found) -> int:
        """Return how many bytes of a file need not be read."""
        known = self._known.get(found.path)
        is_grown = known is not None and found.is_appended and known.inode == found.inode
        return known.size if known is not None and is_grown else 0

    def _add(self, files: Iterable[Opened]) -> None:
        made = Bundler(self._store, self._paced, self._bundles).add(files, self._known, time.time_ns())
        self._known |= {one.path: one for one in made}

    def _before(self, state: RemoteState, instant: Instant) -> tuple[int, _Part]:
        """Return what the cut has of the log directories that are offline, and of which rounds.

        Rounds of the instant that the ledger has only later are not in the cut, even if other directories
        have them. Raises CutSkipped, StoreError, OSError.
        """
        offline, (_, newest) = instant.look.offline, self._newest
        told, self._offline = self._offline, offline
        if not offline:
            return instant.shipped, _Part([], [], [], [])
        paths = ", ".join(str(self._broker.log_dirs[number]) for number in sorted(offline))
        if offline != told:
            says = "new cuts repeat what the last one has of it, and what was shipped since"
            if newest is None:
                says = "no cut is made, since no former cut has it: repair the disk"
            log.warning("%s is offline: %s", paths, says)
        online = [path for number, path in enumerate(self._broker.log_dirs) if number not in offline]
        if newest is None or not online:
            raise CutSkipped(f"{paths} is offline, and no former cut has it: repair the disk")
        event, there = state.cuts[-1].event, state.shipped_numbers
        rounds = [one for one in self._rounds(event, instant) if one.number in there] if there else []
        scratch = online[0] / _SCRATCH
        try:
            bundler = Bundler(self._store, self._paced, self._bundles)
            newest = self._forward(self._store, bundler, newest, offline, rounds, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return max([event.shipped, *(one.number for one in rounds)]), _Part(
            [one for one in newest.directories if log_dir_of(one) in offline],
            [one for one in newest.remote if log_dir_of(one.directory) in offline],
            [one for one in newest.files if log_dir_of(one.path) in offline],
            [one for one in newest.ends if log_dir_of(one.directory) in offline],
        )

    def _rounds(self, newest: CutTaken, instant: Instant) -> Iterator[Shipped]:
        """Yield the rounds in the ledger between the newest cut and an instant."""
        for entry in read_entries(self._store, (newest.since or newest.after) + 1, instant.since):
            for one in entry.events:
                if isinstance(one, Shipped) and one.number <= instant.shipped:
                    yield one

    def _finished(self, instant: Instant, before: _Part) -> Cut:
        found = list(instant.look.files())
        files = [self._known[one.path] for one in found]
        assert all((one.size, one.inode) == other[2:4] for one, other in zip(files, found, strict=True))
        files += before.files
        named = {piece.bundle for one in files for piece in one.pieces}
        manifest = CutManifest(
            self._cluster_id,
            self._broker_id,
            self._boot_id,
            instant.taken_ms,
            [str(one) for one in self._broker.log_dirs],
            [*instant.look.partitions, *before.directories],
            [*filter(None, (one.remote for one in instant.look.partitions.values())), *before.remote],
            files,
            {one.hex(): self._bundles[one] for one in sorted(named)},
            ends=[*_ends(instant.look), *before.ends],
        )
        packed, cut_id = encode_manifest(manifest), new_id()
        self._store.put(cut_name(cut_id), [packed], len(packed))
        sizes = len(packed), digest(packed)
        return Cut(cut_id, manifest, *sizes, instant.paused_s, instant.shipped, instant.since)


class _Part(NamedTuple):
    """The entries of a manifest that belong to some log directories."""

    directories: list[str]
    remote: list[CutPartition]
    files: list[CutFile]
    ends: list[CutEnd]


def _ends(look: Look) -> Iterator[CutEnd]:
    """Yield the ends of partitions that were open, and whose row is still theirs."""
    for path, row in look.rows.items():
        now = unpack_partition(row.payload)
        is_same = (now.topic_id, now.partition) == (row.topic_id, row.partition)
        if is_same and now.flags & PartitionFlag.PARTITION_LIVE and path.startswith(f"{now.log_dir}/"):
            ends = now.log_start_offset, now.high_watermark, now.last_stable_offset
            yield CutEnd(path, now.topic_id, now.partition, *ends)


def expired(state: RemoteState, now_ms: int, retention_ms: int) -> CutsRemoved | None:
    """Return the event that ends cuts older than the retention, but the newest; None if there are none.

    A bundle ends when all cuts before the first that names it no longer have ended.
    """
    if not state.cuts:
        return None
    old = tuple(takewhile(lambda one: now_ms - one.time_ms > retention_ms, state.cuts[:-1]))
    oldest = state.cuts[len(old)].event
    bundles = tuple(
        one for one, after in state.bundles.items() if after is not None and after <= oldest.after
    )
    if not old and not bundles:
        return None
    return CutsRemoved(tuple(one.event.cut_id for one in old), bundles)
