"""Describes planned ranges as JSON for readers in other languages, which read segments themselves, or fetch.

The JSON includes the passwords with which a reader connects to the brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpbroker.client.config import UNIX
from mpbroker.protocol.uuids import uuid_text
from mpbroker.reading.errors import LOSS_ADVICE, SourceUnavailable
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import LocalFiles, TaskRange
from mpbroker.reading.remote_catalog import kafka_client_settings, servers_of
from mpbroker.reading.segments import pieces, weight
from mpbroker.reading.transactions import aborted_in
from mpbroker.records.aborted import AbortedRange
from mpbroker.storage.reader import SegmentGone


def manifest_of(tasks: Sequence[TaskRange], options: ReadOptions) -> dict[str, Any]:
    """Return the JSON for io.mpbroker.spark.Manifest; {"declined": reason} if only Python can read.

    Raises SourceUnavailable, CorruptLog, OSError.
    """
    bootstrap = None if options.read_mode == "local" else options.bootstrap_servers
    if bootstrap is not None and UNIX in bootstrap:
        if any(task.files is None and task.bucket is None for task in tasks):
            return {"declined": "kafka.bootstrap.servers is a Unix socket, to which only Python connects"}
        bootstrap = None
    return {
        "tasks": [_described(task, read_committed=options.read_committed) for task in tasks],
        "brokers": None if bootstrap is None else _brokers(bootstrap, options),
        "failOnDataLoss": options.fail_on_data_loss,
        "checkCrcs": options.check_crcs,
        "lossAdvice": LOSS_ADVICE,
    }


def _brokers(bootstrap: str, options: ReadOptions) -> dict[str, Any]:
    """Return what a fetch needs: where the brokers are, and the settings of Kafka's client."""
    servers = servers_of(bootstrap)
    return {
        "servers": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers],
        "client": kafka_client_settings(options),
        "fetchBytes": options.fetch_bytes,
        "retries": options.retries,
        "retryIntervalMs": options.retry_interval_ms,
        "readCommitted": options.read_committed,
    }


def _described(task: TaskRange, *, read_committed: bool) -> dict[str, Any]:
    files, bucket = task.files, task.bucket
    aborted: Sequence[AbortedRange] | None = None
    if read_committed and bucket is not None:
        aborted = bucket.aborted
    elif read_committed and files is not None:
        aborted = _aborted(task, files)
    return {
        "topic": task.topic,
        "partition": task.partition,
        "start": task.start,
        "end": task.end,
        "topicId": None if task.topic_id is None else uuid_text(task.topic_id),
        "places": [] if files is None else [str(place) for place in files.places()],
        "bucket": None if bucket is None else {"url": bucket.url, "segments": bucket.segments},
        "bytes": _bytes(task),
        "clusterId": "" if files is None else files.cluster_id,
        "nodeId": "" if files is None else files.node_id,
        # Null, not an empty list, means that aborted records are wanted, or that brokers will list them.
        "aborted": None if aborted is None else [list(one) for one in aborted],
    }


def _aborted(task: TaskRange, files: LocalFiles) -> list[AbortedRange]:
    """Return the aborted transactions of the range. Raises CorruptLog, SourceUnavailable."""
    directory = Path(files.directory)
    try:
        return [*files.aborted, *aborted_in(directory, task.start, task.end)]
    except (SegmentGone, FileNotFoundError) as error:
        raise SourceUnavailable(
            f"{directory} changed while the query was planned: {error}. Run it again"
        ) from error


def _bytes(task: TaskRange) -> int:
    """Return the size of the range in bytes, 0 if it is unknown or files were deleted: tasks report that."""
    if task.bucket is not None:
        return sum(one.weight(task.start, task.end) for one in task.bucket.segments)
    if (files := task.files) is None:
        return 0
    with suppress(SegmentGone, FileNotFoundError):
        return weight(pieces(Path(files.directory), files.bound, task.start, task.end))
    return 0
