"""Flags of `mpbroker consume`: which of them go together, and what they mean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.registry_flags import RegistryAddress, decoder
from mpbroker.client.consumer import parse_isolation
from mpbroker.client.groups import parse_protocol
from mpbroker.client.positions import BEGINNING, END, Start, parse_start
from mpbroker.client.times import parse_time
from mpbroker.protocol.consumer_protocol import CLASSIC

TEMPLATE = "%v\\n"


class ConsumeFlags(NamedTuple):
    """The flags that choose records and limit their number."""

    topic: str
    partition: int
    records_max: int
    exit_at_end: bool
    isolation_level: str
    group: str | None
    group_protocol: str | None


class StartFlags(NamedTuple):
    """The flags that name where to begin and where to stop."""

    from_beginning: bool
    offset: str | None
    from_time: str | None
    until_time: str | None

    def start(self, now_ms: int) -> Start | None:
        """Return the place to begin, None if no flag names one. Raises CliError if several do."""
        flags = {
            "--from-beginning": self.from_beginning or None,
            "-o": self.offset,
            "--from-time": self.from_time,
        }
        if len(given := [name for name, value in flags.items() if value is not None]) > 1:
            raise CliError(f"these exclude each other: {', '.join(given)}", USAGE_ERROR)
        if self.from_beginning:
            return BEGINNING
        if self.from_time is not None:
            return Start("time", of_flag("--from-time", self.from_time, parse_time, now_ms))
        return None if self.offset is None else of_flag("-o", self.offset, parse_start, now_ms)


class OutputFlags(NamedTuple):
    """The flags for the form of printed records, or for the file that records are written to."""

    template: str
    as_json: bool
    to: Path | None
    overwrite: bool
    log_dirs: str | None
    registry: RegistryAddress = RegistryAddress()


def consume(where: ClusterAddress, what: ConsumeFlags, place: StartFlags, into: OutputFlags) -> None:
    """Print records, or write them to a file. Raises CliError."""
    now_ms = time.time_ns() // 1_000_000
    start = place.start(now_ms)
    isolation = of_flag("--isolation-level", what.isolation_level, parse_isolation)
    if into.to is not None:
        _write(where, what, place, into, start or BEGINNING)
        return
    if into.overwrite or into.log_dirs is not None:
        raise CliError("--overwrite and --log-dirs go with --to", USAGE_ERROR)
    if what.group is not None:
        _check_group(what, start)
    elif what.group_protocol is not None:
        raise CliError("--group-protocol goes with --group", USAGE_ERROR)
    from mpbroker.cli.records import consume as command

    until_ms = None
    if place.until_time is not None:
        until_ms = of_flag("--until-time", place.until_time, parse_time, now_ms)
    settings = command.Settings(
        what.topic,
        what.partition,
        start or END,
        until_ms,
        what.records_max,
        what.exit_at_end,
        into.template,
        into.as_json,
        isolation,
        what.group,
        of_flag("--group-protocol", what.group_protocol or CLASSIC, parse_protocol),
    )
    command.consume(where, settings, decoder(into.registry))


def _check_group(what: ConsumeFlags, start: Start | None) -> None:
    if not what.group:
        raise CliError("--group has no name", USAGE_ERROR)
    if what.partition >= 0:
        raise CliError("--group: its members share the partitions; -p cannot choose one", USAGE_ERROR)
    if start is not None and start not in (BEGINNING, END):
        raise CliError(
            "--group begins where it is; -o beginning or end is for partitions where it is new, and mpbroker "
            "group reset-offsets sets it",
            USAGE_ERROR,
        )


def _write(
    where: ClusterAddress, what: ConsumeFlags, place: StartFlags, into: OutputFlags, start: Start
) -> None:
    from mpbroker.cli.records import to_file

    assert into.to is not None
    if into.as_json or into.template != TEMPLATE:
        raise CliError("--to writes columns: -f and --json are for printing", USAGE_ERROR)
    if any(one is not None for one in (what.group, what.group_protocol, place.until_time)):
        raise CliError("--to writes what is there: --group and --until-time are for printing", USAGE_ERROR)
    to_file.write(
        where,
        to_file.Settings(
            what.topic, what.partition, start, what.records_max, into.to, into.overwrite, into.log_dirs
        ),
    )
