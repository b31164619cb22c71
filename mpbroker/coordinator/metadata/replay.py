"""Reads `__cluster_metadata-0`: this broker's, or that of the one it stands by for. Changes nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.remote import SYSTEM_ENABLE
from mpbroker.config.topic_config import is_tiered
from mpbroker.coordinator.metadata.metadata_records import UnreadableMetadata, decode_record
from mpbroker.coordinator.metadata.state import InconsistentMetadata, MetadataState
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import Partition
from mpbroker.protocol.messages import RemoveTopicRecord
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.storage.names import METADATA_DIRECTORY, segment_name
from mpbroker.storage.segments import batches_below, batches_of, segments_of

_log = logging.getLogger("mpbroker.coordinator.metadata")


def replay(log_dirs: tuple[str, ...], end: Partition) -> tuple[MetadataState, dict[bytes, str]]:
    """Return the durable state, and the names of removed topics by id. Raises FatalError if unreadable."""
    directory = Path(log_dirs[end.log_dir]) / METADATA_DIRECTORY
    state = MetadataState()
    try:
        removed = _apply(batches_below(directory, end), state)
        if state.next_offset != end.high_watermark:
            raise InconsistentMetadata(f"it ends at offset {state.next_offset}, not at {end.high_watermark}")
    except (CorruptBatch, UnreadableMetadata, InconsistentMetadata, OSError) as error:
        raise FatalError(
            f"{directory} cannot be read: {error}. It holds the names, ids and settings of all topics; "
            "restore it from a copy of the log directory"
        ) from error
    # A tiered topic may come back under its id.
    return state, {topic_id: name for topic_id, name in removed.items() if topic_id not in state.topics}


def replay_mirror(log_dirs: Iterable[str]) -> MetadataState | None:
    """Return the state in a mirror of a leader's log directories, up to the first batch that is not whole.

    The standby writes to the mirror meanwhile, and says so afterwards: what is missing now is read then.
    Return None if the log cannot be read now.
    """
    state = MetadataState()
    try:
        directory = next(path for one in log_dirs if (path := Path(one) / METADATA_DIRECTORY).is_dir())
        _apply(_whole_batches(directory), state)
    except StopIteration:
        return None
    except (CorruptBatch, UnreadableMetadata, InconsistentMetadata, OSError) as error:
        _log.warning("the mirror's %s cannot be read now: %s", METADATA_DIRECTORY, error)
        return None
    return state


def _whole_batches(directory: Path) -> Iterator[Batch]:
    """Yield the log's batches up to the first that is torn. Raises OSError."""
    with suppress(CorruptBatch):
        for base in segments_of(directory):
            with (directory / segment_name(base)).open("rb") as file:
                yield from batches_of(file, os.fstat(file.fileno()).st_size)


def _apply(batches: Iterable[Batch], state: MetadataState) -> dict[bytes, str]:
    """Apply all batches of a log; return the names of removed topics by id.

    Raises what `batches` does, UnreadableMetadata and InconsistentMetadata.
    """
    removed: dict[bytes, str] = {}
    for batch in batches:
        if batch.header.base_offset != state.next_offset:
            raise InconsistentMetadata(
                f"offset {batch.header.base_offset} follows offset {state.next_offset - 1}"
            )
        if batch.is_control:
            state.next_offset = batch.last_offset + 1
            continue
        records = [decode_record(record.value or b"") for record in batch.records()]
        for record in records:
            if isinstance(record, RemoveTopicRecord) and record.topic_id in state.topics:
                removed[record.topic_id] = state.topics[record.topic_id].name
        state.apply_all(records)
    return removed


def refuse_tiered_topics(state: MetadataState, config: BrokerConfig) -> None:
    """Raise FatalError if topics are tiered and the broker has no object store (Kafka: LogManager).

    Without the store their older records cannot be read, and local retention would delete the others.
    """
    tiered = sorted(topic.name for topic in state.topics.values() if is_tiered(topic.configs))
    if tiered and not config.remote_log_storage_system_enable:
        raise FatalError(
            f"{SYSTEM_ENABLE} is false, and topics have records in an object store: {', '.join(tiered[:3])}"
            f"{' and others' if tiered[3:] else ''}. Set it to true, then switch these topics off with "
            "remote.storage.enable=false,remote.log.delete.on.disable=true, or delete them"
        )
