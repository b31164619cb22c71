"""Dumps a partition's files entry by entry; each entry is a mapping (Kafka: DumpLogSegments)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from mpbroker.coordinator.groups.records import KINDS
from mpbroker.coordinator.runtime.log_records import UnreadableRecord, decode_record
from mpbroker.inspection.segment import batches, mapped
from mpbroker.protocol.topic_names import GROUP_TOPIC
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchFrame,
)
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import ABORT, marker_of
from mpbroker.records.record import Record
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs, read_offsets, read_topic_id
from mpbroker.storage.index import read_offset_entries, read_time_entries
from mpbroker.storage.journal import Extent, JournalDamaged, JournalFile, worker_of
from mpbroker.storage.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_STARTS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REMOTE_SEGMENTS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment,
    segment_name,
)
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.strict_stat import is_there
from mpbroker.storage.transaction_index import TransactionIndexCorrupt, read_aborted

Entry = dict[str, Any]


class NotAFile(ValueError):
    """Raised for a file whose name is not the name of any kind of file in a log directory."""


class Unreadable(ValueError):
    """Raised for a file that does not have the format that its name implies."""


def files_of(path: Path) -> list[Path]:
    """Return [path] for a file; for a partition's directory, the dumpable files, sorted by segment."""
    if not path.is_dir():
        return [path]
    kinds = list(_BY_SUFFIX)
    named = [
        file
        for file in path.iterdir()
        if file.suffix in kinds and parse_segment(file.name, file.suffix) is not None
    ]
    others = [path / name for name in (LEADER_EPOCHS, PARTITION_METADATA, REMOTE_SEGMENTS)]
    return [
        *sorted(named, key=lambda file: (file.stem, kinds.index(file.suffix))),
        *(file for file in others if is_there(file)),
    ]


def entries(path: Path, *, with_records: bool) -> Iterator[Entry]:
    """Iterate over the entries of a file. Raises NotAFile at once, Unreadable and OSError while iterating."""
    base = parse_segment(path.name, path.suffix)
    if path.name in _BY_NAME:
        read = _BY_NAME[path.name](path)
    elif worker_of(path.name) is not None:
        read = _journal(path)
    elif base is None or path.suffix not in _BY_SUFFIX:
        raise NotAFile(
            f"{path} is none of the files that this command knows: <offset>.log, .index, .timeindex, "
            ".txnindex and .snapshot, checkpoints, and commit journals"
        )
    elif path.suffix == LOG_SUFFIX:
        read = _log(path, base, with_records)
    else:
        read = _BY_SUFFIX[path.suffix](path, base)
    return _readable(path, read)


def _readable(path: Path, read: Iterator[Entry]) -> Iterator[Entry]:
    try:
        yield from read
    except (CheckpointCorrupt, SnapshotCorrupt) as error:
        raise Unreadable(f"{path}: {error}") from error
    except TransactionIndexCorrupt as error:
        raise Unreadable(str(error)) from error


# ---- checkpoints


def _offsets(path: Path) -> Iterator[Entry]:
    for (topic, partition), offset in read_offsets(path).items():
        yield {"topic": topic, "partition": partition, "offset": offset}


def _epochs(path: Path) -> Iterator[Entry]:
    for epoch, start in read_epochs(path.parent):
        yield {"epoch": epoch, "start_offset": start}


def _metadata(path: Path) -> Iterator[Entry]:
    topic_id = read_topic_id(path.parent)
    yield {"version": 0, "topic_id": uuid_text(topic_id) if topic_id is not None else None}


def _journal(path: Path) -> Iterator[Entry]:
    try:
        journal = JournalFile(path)
        try:
            for number, record in enumerate(journal.records()):
                for extent in record.extents:
                    yield _extent(number, extent)
        finally:
            journal.close()
    except JournalDamaged as error:
        raise Unreadable(str(error)) from error


def _extent(number: int, extent: Extent) -> Entry:
    return {
        "record": number,
        "topic_id": uuid_text(extent.topic_id),
        "partition": extent.partition,
        "segment": segment_name(extent.segment_base),
        "position": extent.position,
        "bytes": len(extent.data),
        "end_offset": extent.end_offset,
    }


# ---- segments


def _log(path: Path, base: int, with_records: bool) -> Iterator[Entry]:
    is_of_groups = path.absolute().parent.name.rpartition("-")[0] == GROUP_TOPIC
    with mapped(path) as view:
        for found in batches(view, base):
            if isinstance(found, CorruptBatch):
                yield {"damaged_at": found.position, "reason": found.reason}
                continue
            yield _batch(found) | _marker(view, found)
            if with_records:
                yield from _records(Batch(view, found), _group_record if is_of_groups else _record)


def _batch(frame: BatchFrame) -> Entry:
    codec = Codec(frame.codec).name.lower() if frame.codec <= Codec.ZSTD else str(frame.codec)
    batch = {
        "base_offset": frame.base_offset,
        "last_offset": frame.base_offset + frame.last_offset_delta,
        "position": frame.position,
        "bytes": frame.length,
        "records": frame.record_count,
        "leader_epoch": frame.leader_epoch,
        "codec": codec,
        "timestamp_type": "LogAppendTime" if frame.attributes & LOG_APPEND_TIME_BIT else "CreateTime",
        "max_timestamp": frame.max_timestamp,
        "producer_id": frame.producer_id,
        "producer_epoch": frame.producer_epoch,
        "base_sequence": frame.base_sequence,
        "transactional": bool(frame.attributes & TRANSACTIONAL_BIT),
        "control": bool(frame.attributes & CONTROL_BIT),
    }
    if frame.attributes & DELETE_HORIZON_BIT:
        batch["delete_horizon_ms"] = frame.base_timestamp
    return batch


def _marker(view: memoryview, frame: BatchFrame) -> Entry:
    """Return the marker of a control batch, {} if it has none."""
    if not frame.attributes & CONTROL_BIT:
        return {}
    marker = marker_of(view[frame.position : frame.position + frame.length])
    if marker is None:
        return {}
    return {"marker": "abort" if marker[0] == ABORT else "commit", "coordinator_epoch": marker[1]}


def _records(batch: Batch, shown: Callable[[Record], Entry]) -> Iterator[Entry]:
    try:
        records = batch.records()
    except CorruptBatch as error:
        yield {"damaged_at": error.position, "reason": error.reason}
        return
    yield from map(shown, records)


def _record(record: Record) -> Entry:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": {name: _text(value) for name, value in record.headers},
    }


def _group_record(record: Record) -> Entry:
    """Return a record of `__consumer_offsets` with the fields of its key and value, if they are known."""
    entry = _record(record)
    with suppress(UnreadableRecord):
        decoded = decode_record(record.key, record.value, KINDS)
        if decoded is not None:
            key, value = (to_builtins(one, builtin_types=(bytes,)) for one in decoded)
            entry["key"] = {"type": type(decoded[0]).__name__.removesuffix("Key"), **_readable_bytes(key)}
            entry["value"] = _readable_bytes(value)
    return entry


def _readable_bytes(value: Any, name: str = "") -> Any:
    """Return `value`, a tree of lists and mappings, with text in place of bytes. `name`: its key, if any."""
    if isinstance(value, bytes):
        return uuid_text(value) if name == "topic_id" else _text(value)
    if isinstance(value, list):
        return [_readable_bytes(one, name) for one in value]
    if isinstance(value, dict):
        return {key: _readable_bytes(one, key) for key, one in value.items()}
    return value


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _offset_index(path: Path, base: int) -> Iterator[Entry]:
    for offset, position in read_offset_entries(path, base):
        yield {"offset": offset, "position": position}


def _time_index(path: Path, base: int) -> Iterator[Entry]:
    for timestamp, offset in read_time_entries(path, base):
        yield {"timestamp": timestamp, "offset": offset}


def _aborted(path: Path, _: int) -> Iterator[Entry]:
    for found in read_aborted(path):
        yield dict(found._asdict())


def _snapshot(path: Path, _: int) -> Iterator[Entry]:
    producers = Producers()
    producers.load(path.read_bytes())
    for producer_id, epoch, coordinator_epoch, open_from, sent in producers.entries():
        last_sequence, last_offset, delta, timestamp = sent[-1] if sent else (-1, -1, 0, -1)
        yield {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "coordinator_epoch": coordinator_epoch,
            "open_transaction_from": open_from,
            "last_sequence": last_sequence,
            "last_offset": last_offset,
            "offset_delta": delta,
            "timestamp": timestamp,
        }


def _remote(path: Path) -> Iterator[Entry]:
    for segment in read_remote_segments(path.parent):
        yield {
            "base_offset": segment.base,
            "last_offset": segment.end - 1,
            "bytes": segment.size,
            "largest_timestamp": segment.largest_ms,
            "segment_id": uuid_text(segment.segment_id),
        }


_BY_NAME: dict[str, Callable[[Path], Iterator[Entry]]] = {
    **dict.fromkeys((RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS), _offsets),
    LEADER_EPOCHS: _epochs,
    PARTITION_METADATA: _metadata,
    REMOTE_SEGMENTS: _remote,
}
_BY_SUFFIX: dict[str, Callable[[Path, int], Iterator[Entry]]] = {
    LOG_SUFFIX: partial(_log, with_records=False),
    INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TXN_INDEX_SUFFIX: _aborted,
    SNAPSHOT_SUFFIX: _snapshot,
}
