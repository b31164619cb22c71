"""Describes planned ranges as JSON for readers in other languages, which read the segments themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpbroker.protocol.uuids import uuid_text
from mpbroker.reading.errors import LOSS_ADVICE, SourceUnavailable
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import LocalFiles, TaskRange
from mpbroker.reading.segments import pieces, weight
from mpbroker.reading.transactions import aborted_in
from mpbroker.records.aborted import AbortedRange
from mpbroker.storage.reader import SegmentGone


def manifest_of(tasks: Sequence[TaskRange], options: ReadOptions) -> dict[str, Any]:
    """Return the JSON for io.mpbroker.spark.Manifest; {"declined": reason} if a range has to be fetched.

    Raises SourceUnavailable, CorruptLog, OSError.
    """
    described = []
    for task in tasks:
        if task.files is None:
            return {"declined": f"{task} has to be fetched"}
        described.append(_described(task, task.files, read_committed=options.read_committed))
    return {
        "tasks": described,
        "failOnDataLoss": options.fail_on_data_loss,
        "checkCrcs": options.check_crcs,
        "lossAdvice": LOSS_ADVICE,
    }


def _described(task: TaskRange, files: LocalFiles, *, read_committed: bool) -> dict[str, Any]:
    aborted = _aborted(task, files) if read_committed else None
    return {
        "topic": task.topic,
        "partition": task.partition,
        "start": task.start,
        "end": task.end,
        "topicId": None if task.topic_id is None else uuid_text(task.topic_id),
        "places": [str(place) for place in files.places()],
        "bytes": _bytes(task, files),
        "clusterId": files.cluster_id,
        "nodeId": files.node_id,
        # Null, not an empty list, means that aborted records are wanted.
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


def _bytes(task: TaskRange, files: LocalFiles) -> int:
    """Return the current size of the range in bytes, 0 if files were deleted: the task will report that."""
    with suppress(SegmentGone, FileNotFoundError):
        return weight(pieces(Path(files.directory), files.bound, task.start, task.end))
    return 0
