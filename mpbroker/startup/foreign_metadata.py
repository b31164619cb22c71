"""Refuses log directories with metadata that are not mpbroker's, before a start changes anything in them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mpbroker.ipc.process import FatalError
from mpbroker.migration.ownership import read_ownership
from mpbroker.storage import names
from mpbroker.storage.directory_layout import directories_in, own_files
from mpbroker.storage.names import METADATA_DIRECTORY
from mpbroker.storage.strict_stat import is_there


def refuse_foreign_metadata(log_dirs: Sequence[str]) -> None:
    """Raise FatalError if the metadata in these log directories is not mpbroker's. Change nothing."""
    paths = [Path(name) for name in log_dirs]
    try:
        with_metadata = [path for path in paths if (path / METADATA_DIRECTORY).is_dir()]
        for path in with_metadata:
            _refuse_records(path, paths)
        if not with_metadata:
            _refuse_partitions(paths)
    except PermissionError as error:
        raise FatalError(
            f"log.dirs: the metadata cannot be read: {error}. Start the broker as the owner of these files, "
            "or chown the directory to the broker's user"
        ) from error
    except OSError as error:
        raise FatalError(f"log.dirs: the metadata cannot be read: {error}. Repair or restore it") from error


def _refuse_records(log_dir: Path, all_dirs: Sequence[Path]) -> None:
    """Raise FatalError if a directory's metadata has records of Kafka or unreadable ones. Raises OSError."""
    directory = log_dir / METADATA_DIRECTORY
    command = shlex.join(["mpbroker", "import", *map(str, all_dirs)])
    advice = f"Continue with Kafka there; or stop it in order and take everything over with: {command}"
    found = read_ownership(log_dir)
    if found.begins_at:
        raise _refusal(
            f"{log_dir} belongs to Apache Kafka: {directory} begins at offset {found.begins_at}, and what "
            f"was before is in a snapshot. {advice}"
        )
    if found.kafkas is not None:
        whose = "Apache Kafka has used {} since mpbroker" if found.is_ours else "{} belongs to Apache Kafka"
        raise _refusal(
            f"{whose.format(log_dir)}: its controller wrote the record at offset {found.kafkas} of "
            f"{directory}. {advice}"
        )
    if found.unreadable is not None:
        offset, why = found.unreadable
        raise _refusal(
            f"the record at offset {offset} of {directory} cannot be read: {why}. A later version of "
            f"mpbroker wrote it, or it is damaged: start that version, or restore {directory} from a copy"
        )
    if found.election is not None:
        raise _refusal(
            f"Apache Kafka was started on {log_dir} since mpbroker: its controller has written to "
            f"{directory} at offset {found.election}. {advice}"
        )


def _refuse_partitions(paths: Sequence[Path]) -> None:
    """Raise FatalError if there are partitions but no metadata, since a start would set the partitions aside.

    Raises OSError.
    """
    here = [path for path in paths if is_there(path / names.META_PROPERTIES)]
    if any(map(own_files, here)):
        return
    for path in here:
        if (name := next(filter(names.is_live_partition, directories_in(path)), None)) is not None:
            raise _refusal(
                f"{path} has partitions ({name}), but none of log.dirs has {METADATA_DIRECTORY} or another "
                "file of mpbroker's: it is one of several log directories of an Apache Kafka, or of an "
                "mpbroker whose others are not named. Name all that belong together, or "
                "an empty directory"
            )


def _refusal(why: str) -> FatalError:
    return FatalError(f"log.dirs: {why}. Nothing in the directory was changed")
