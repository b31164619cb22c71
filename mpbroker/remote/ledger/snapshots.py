"""The objects `mpbroker/snapshot/<number of an entry>`: what a ledger adds up to after that entry.

    header\n     a line of JSON, see `_Header`
    body         JSON, see `_Body`, compressed by zstd

A ledger can always be read without them: one that is damaged, or of another format, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import cramjam
import msgspec

from mpbroker.remote.ledger.entries import SEQ_DIGITS, digest
from mpbroker.remote.ledger.events import SegmentAdded, StandbySet, Started, TakenOver
from mpbroker.remote.ledger.state import NamedSnapshot, RemoteCut, RemoteState, RemoteTopic, RemovedSegment
from mpbroker.remote.store.object_store import ObjectStore

PREFIX: Final = "mpbroker/snapshot/"
SNAPSHOT_FORMAT: Final = 2
# The newest may be damaged.
KEPT: Final = 2
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


def write_snapshot(store: ObjectStore, snapshot: Snapshot) -> None:
    """Write a snapshot, and delete those that are older than the one before it. Raises StoreError."""
    data = encode_snapshot(snapshot)
    store.put(snapshot_name(snapshot.seq), [data], len(data))
    names = [found.name for found in store.list(PREFIX)]
    store.delete(names[:-KEPT])
