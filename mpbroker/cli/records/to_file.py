"""`mpbroker consume --to FILE`: writes a topic's present records as Parquet or Arrow, whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mpbroker.cli.cluster.client import read_entries
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.output import counted
from mpbroker.cli.text.progress import progress_bar
from mpbroker.client.positions import Ends, Start
from mpbroker.config.extras import pip_install

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

SUFFIXES = (".parquet", ".arrow")
# Size of a row group or an Arrow batch: smaller ones cost readers time, larger ones their memory.
GROUP_BYTES = 64 << 20


class Settings(NamedTuple):
    """The flags of `consume --to`. `records_max` 0 means all records, `partition` -1 all partitions."""

    topic: str
    partition: int
    start: Start
    records_max: int
    to: Path
    is_overwritten: bool
    log_dirs: str | None


class Range(NamedTuple):
    """The wanted offsets [start, end) of a partition."""

    start: int
    end: int


def write(where: ClusterAddress, settings: Settings) -> None:
    """Write the topic's committed records, from the place that -o names to the end; print a summary."""
    _check_target(settings)
    try:
        from mpbroker.reading import arrow
    except ModuleNotFoundError as error:
        raise CliError(
            f"--to needs PyArrow: {pip_install('arrow')} ({error.name} is missing)", USAGE_ERROR
        ) from error
    from mpbroker.reading import errors as of_reading

    try:
        given = _options(where, settings)
        ranges = _ranges(given, settings)
        if not any(one.end > one.start for one in ranges.values()):
            schema, batches = arrow.arrow_schema(given), iter(())
        else:
            reader = arrow.open_reader({**given, **_limits(settings.topic, ranges)})
            schema, batches = reader.schema, iter(reader)
        total = sum(max(0, one.end - one.start) for one in ranges.values())
        with _whole_file(settings) as file, _writer(settings.to, file, schema) as write_table:
            rows = _copy(_first(batches, settings.records_max), write_table, schema, ranges, total)
    except of_reading.OptionError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except (of_reading.SourceUnavailable, of_reading.DataLoss, of_reading.CorruptLog) as error:
        raise CliError(str(error)) from error
    ends = ", ".join(f"{number} to {one.end:,}" for number, one in sorted(ranges.items()))
    sys.stdout.write(
        f"{settings.to}: {counted(rows, 'record')} of {settings.topic}, "
        "of what was committed when this began\n"
        f"End offsets by partition: {ends}\n"
    )


def _check_target(settings: Settings) -> None:
    if settings.to.suffix not in SUFFIXES:
        raise CliError(f"--to {settings.to}: a name ends in {' or '.join(SUFFIXES)}", USAGE_ERROR)
    if not settings.to.parent.is_dir():
        raise CliError(f"--to {settings.to}: there is no directory {settings.to.parent}", USAGE_ERROR)
    if settings.to.exists() and not settings.is_overwritten:
        raise _is_there(settings.to)


def _is_there(path: Path) -> CliError:
    return CliError(f"{path} is there already; --overwrite replaces it", USAGE_ERROR)


def _options(where: ClusterAddress, settings: Settings) -> dict[str, str]:
    """Return the flags as options of the Spark source, with the properties of --command-config."""
    given = {"includeHeaders": "true", "kafka.bootstrap.servers": where.bootstrap}
    if settings.log_dirs is not None:
        given["log.dir"] = settings.log_dirs
    if settings.partition < 0:
        given["subscribe"] = settings.topic
    else:
        given["assign"] = _json({settings.topic: [settings.partition]})
    entries = read_entries(where.command_config)
    return given | {f"kafka.{entry.key}": entry.value for entry in entries}


def _ranges(given: Mapping[str, str], settings: Settings) -> dict[int, Range]:
    """Return the offsets to write, by partition. Raises CliError, OptionError, SourceUnavailable."""
    from mpbroker.reading.catalogs import open_catalog
    from mpbroker.reading.options import parse_options
    from mpbroker.reading.plan import selected

    first = settings.start
    if first.time_ms is not None:
        raise CliError("--to begins at an offset, not at a time: mpbroker offsets --time has it", USAGE_ERROR)
    options = parse_options(given)
    with closing(open_catalog(options)) as catalog:
        bounds = catalog.bounds(selected(catalog, options))
    found = {}
    for (topic, number), one in bounds.items():
        start = first.within(Ends(one.log_start, one.end))
        if not one.log_start <= start <= one.end:
            raise CliError(
                f"{topic}-{number} at offset {start}: no such offset, it has {one.log_start} to {one.end}; "
                "try -o beginning or one of these",
                USAGE_ERROR,
            )
        found[number] = Range(start, one.end)
    return found


def _limits(topic: str, ranges: Mapping[int, Range]) -> dict[str, str]:
    return {
        "startingOffsets": _json({topic: {str(number): one.start for number, one in ranges.items()}}),
        "endingOffsets": _json({topic: {str(number): one.end for number, one in ranges.items()}}),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _first(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Yield batches up to the first `count` rows; 0 means all rows."""
    left = count or None
    for batch in batches:
        yield batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def _copy(
    batches: Iterator[pa.RecordBatch],
    write_table: Callable[[pa.Table], None],
    schema: pa.Schema,
    ranges: Mapping[int, Range],
    total: int,
) -> int:
    """Write the batches in groups; return the number of rows."""
    import pyarrow as pa
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    rows, held, held_bytes = 0, [], 0
    done = dict.fromkeys(ranges, 0)
    with progress_bar(total, MofNCompleteColumn(), TimeRemainingColumn()) as update:
        for batch in batches:
            rows += batch.num_rows
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= GROUP_BYTES:
                write_table(pa.Table.from_batches(held, schema))
                held, held_bytes = [], 0
            if batch.num_rows:
                # Offsets may have gaps: the last offset shows the progress, not the number of records.
                number, last = batch["partition"][0].as_py(), batch["offset"][-1].as_py()
                done[number] = last + 1 - ranges[number].start
                update(completed=sum(done.values()), description=f"partition {number}")
        write_table(pa.Table.from_batches(held, schema))
    return rows


@contextmanager
def _writer(path: Path, file: Any, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    import pyarrow as pa

    if path.suffix == ".arrow":
        with pa.ipc.new_file(file, schema) as writer:
            yield writer.write_table
    else:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        # Arrow copies the least and the largest value several times, which may have 100 MiB each.
        small = [name for name in schema.names if name not in ("key", "value", "headers")]
        with pq.ParquetWriter(file, schema, compression="zstd", write_statistics=small) as writer:
            yield writer.write_table


@contextmanager
def _whole_file(settings: Settings) -> Iterator[Any]:
    """Yield a temporary file. At the end it is synced and becomes the target; after an error it is removed.

    Raises CliError, OSError.
    """
    target = settings.to
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    making = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            # Give it the mode of a new file; a temporary one is its owner's alone.
            os.fchmod(handle, 0o666 & ~_umask())
            yield file
            file.flush()
            os.fsync(handle)
        if settings.is_overwritten:
            making.replace(target)
        else:
            try:
                # Unlike a rename, a link fails if the file was made meanwhile.
                os.link(making, target)
            except FileExistsError as error:
                raise _is_there(target) from error
    finally:
        making.unlink(missing_ok=True)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _umask() -> int:
    """Return the umask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
