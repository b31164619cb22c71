"""The objects `mpbroker/snapshot/<number of an entry>`: what a ledger adds up to after that entry.

    header\n     a line of JSON, see `_Header`
    body         JSON, see `_Body`, compressed by zstd

One that is damaged, or of another format, is passed over. A ledger can be read without them as long as it is
whole. Its entries are deleted below snapshots that it names, and that were read back (`trimming`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import cramjam
import msgspec

from mpbroker.remote.ledger.entries import SEQ_DIGITS, digest
from mpbroker.remote.ledger.events import SegmentAdded, SnapshotWritten, StandbySet, Started, TakenOver
from mpbroker.remote.ledger.state import NamedSnapshot, RemoteCut, RemoteState, RemoteTopic, RemovedSegment
from mpbroker.remote.store.object_store import ObjectStore, StoreError

PREFIX: Final = "mpbroker/snapshot/"
SNAPSHOT_FORMAT: Final = 2
# Of those that the ledger does not name: the newest may be damaged.
KEPT: Final = 2
NAMED_EVERY_MS: Final = 24 * 3600 * 1000
# So many are named, one a day, before entries below the oldest of them are deleted.
NAMED: Final = 8
_ZSTD_LEVEL: Final = 3


class _Header(msgspec.Struct, frozen=True):
    """`entry` is the digest of entry `seq`, `body` that of the compressed body."""

    format: int
    seq: int
    entry: str
    body: str


class _Body(msgspec.Struct, frozen=True):
    topics: list[RemoteTopic]
    segments: list[SegmentAdded]
    removed: list[RemovedSegment]
    log_starts: list[tuple[bytes, int, int]]
    cuts: list[RemoteCut] = []
    bundles: list[tuple[bytes, int | None]] = []
    leader: Started | TakenOver | None = None
    is_released: bool = False
    standbys: list[StandbySet] = []
    snapshots: list[NamedSnapshot] = []
    firsts: list[int] = []
    shipped_number: int = 0
    shipped: list[tuple[int, bytes]] = []


class Snapshot(NamedTuple):
    """A state after entry `seq`, whose digest is `digest`."""

    seq: int
    digest: str
    state: RemoteState


class MadeSnapshot(NamedTuple):
    """The bytes of the snapshot of entry `seq`, and what the ledger is to say when they are in the store.

    `kept` are the snapshots that the ledger names.
    """

    seq: int
    data: bytes
    kept: frozenset[int]
    events: tuple[SnapshotWritten, ...]


def snapshot_name(seq: int) -> str:
    return f"{PREFIX}{seq:0{SEQ_DIGITS}d}"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    state = snapshot.state
    body = _Body(
        list(state.topics.values()),
        [segment for segments in state.segments.values() for segment in segments],
        list(state.removed.values()),
        [(*key, offset) for key, offset in state.log_starts.items()],
        state.cuts,
        list(state.bundles.items()),
        state.leader,
        state.is_released,
        list(state.standbys.values()),
        state.snapshots,
        state.firsts,
        state.shipped_number,
        state.shipped,
    )
    packed = bytes(cramjam.zstd.compress(msgspec.json.encode(body), _ZSTD_LEVEL))
    header = _Header(SNAPSHOT_FORMAT, snapshot.seq, snapshot.digest, digest(packed))
    return msgspec.json.encode(header) + b"\n" + packed


def decode_snapshot(data: bytes) -> Snapshot | None:
    """Decode a snapshot; None if it is damaged or of another format."""
    line, _, packed = data.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
        if header.format != SNAPSHOT_FORMAT or header.body != digest(packed):
            return None
        body = msgspec.json.decode(bytes(cramjam.zstd.decompress(packed)), type=_Body)
    except (msgspec.DecodeError, cramjam.DecompressionError):
        return None
    state = RemoteState()
    state.topics = {topic.topic_id: topic for topic in body.topics}
    for segment in body.segments:
        state.segments.setdefault(segment.key, []).append(segment)
    state.removed = {one.segment.segment_id: one for one in body.removed}
    state.log_starts = {(topic_id, partition): offset for topic_id, partition, offset in body.log_starts}
    state.cuts, state.bundles = body.cuts, dict(body.bundles)
    state.leader, state.is_released = body.leader, body.is_released
    state.standbys = {one.broker_id: one for one in body.standbys}
    state.snapshots, state.firsts = body.snapshots, body.firsts
    state.shipped_number, state.shipped = body.shipped_number, body.shipped
    return Snapshot(header.seq, header.entry, state)


def snapshots(
    store: ObjectStore, last: int | None = None, *, newest_first: bool = True
) -> Iterator[Snapshot]:
    """Yield the snapshots that are whole, of entries up to `last`. Raises StoreError."""
    names = [found.name for found in store.list(PREFIX)]
    for name in reversed(names) if newest_first else names:
        if last is not None and name > snapshot_name(last):
            continue
        if (snapshot := decode_snapshot(store.get(name))) is not None:
            yield snapshot


def make_snapshot(snapshot: Snapshot, now_ms: int) -> MadeSnapshot:
    """Encode a snapshot. The ledger names one a day: `now_ms` is the time of its next entry."""
    data, named = encode_snapshot(snapshot), snapshot.state.snapshots
    kept = frozenset(one.event.seq for one in named)
    # Clocks may go back.
    if named and abs(now_ms - named[-1].time_ms) < NAMED_EVERY_MS:
        return MadeSnapshot(snapshot.seq, data, kept, ())
    event = SnapshotWritten(snapshot.seq, _first_needed(snapshot.state))
    return MadeSnapshot(snapshot.seq, data, kept, (event,))


def _first_needed(state: RemoteState) -> int:
    """Return the entry of the newest snapshot at which every reader may begin from here on.

    It is a week old: NAMED - 1 others follow it, with the one that is named now. It is no newer than the
    oldest cut, because a restore reads the ledger as it was at a cut, and what was shipped after it.
    """
    needed = min((one.event.since or one.event.after for one in state.cuts), default=None)
    old = [one.event.seq for one in state.snapshots[: 2 - NAMED]]
    return max((seq for seq in old if needed is None or seq <= needed), default=state.trimmed_before)


def put_snapshot(store: ObjectStore, made: MadeSnapshot) -> None:
    """Write a snapshot and read it back. Delete older ones that are not named. Raises StoreError."""
    name = snapshot_name(made.seq)
    store.put(name, [made.data], len(made.data))
    if store.get(name) != made.data:
        raise StoreError(f"{name} is another one than was written")
    kept = {snapshot_name(seq) for seq in made.kept}
    # Later ones belong to an owner that has taken over meanwhile.
    older = [found.name for found in store.list(PREFIX) if found.name <= name and found.name not in kept]
    store.delete(older[:-KEPT])
