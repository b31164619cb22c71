"""The file that says which topics become which tables, where they lie and how they are written."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from mpbroker.protocol.topic_names import OWN_TOPICS
from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import ReadOptions, parse_options
from spark_integration.jobs.frame import JobError
from spark_integration.tables.catalog import LakeSettings
from spark_integration.tables.values import ValueSettings, value_settings

_NAME: Final = re.compile(r"\w+(\.\w+)+").fullmatch
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`").search
_NO_NAME: Final = re.compile(r"\W")
TOPIC: Final = "{topic}"


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic and its table, or all topics that match a pattern and a table for each.

    `values` is what the file says of the format and the schema of values (see `values.value_settings`).
    """

    topic: str = ""
    pattern: str = ""
    name: str = f"lake.{TOPIC}"
    partition_by: Literal["hour", "day", "month", "none"] = "day"
    values: dict[str, Any] = {}


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often the job commits, of how many offsets of a table at most, and to how many tables at once."""

    interval_s: float = 60
    offsets_per_commit: int = 20_000_000
    tables_at_once: Annotated[int, msgspec.Meta(ge=1)] = 4
    fail_on_data_loss: bool = True


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file, and the directory that its paths begin at.

    `source` has options of format mpbroker, but for those that choose topics.
    """

    source: dict[str, str]
    lake: LakeSettings
    tables: tuple[TableSettings, ...]
    job: JobSettings = JobSettings()
    directory: Path = Path()

    def options(self) -> ReadOptions:
        """Return the options by which a catalog of all topics is opened. Raises OptionError."""
        return parse_options({**self.source, "subscribePattern": ".*"})


_OURS: Final = frozenset(TableSettings.__struct_fields__) - {"values"}


def read_settings(path: Path) -> Settings:
    """Read the file. Raises JobError, OSError."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
        tables = tuple(_table_settings(one) for one in given.pop("tables", ()))
        settings = msgspec.convert({**given, "tables": (), "directory": path.parent}, Settings)
        settings = msgspec.structs.replace(settings, tables=tables)
        _check(settings)
        for one in settings.tables:
            value_settings(one.values, path.parent)
    except (
        OptionError,
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
        UnicodeDecodeError,
        ValueError,
    ) as error:
        raise JobError(f"{path}: {error}{_advice(str(error), text)}") from error
    return settings


def _advice(problem: str, text: str) -> str:
    """Return the line of a name that no setting has, and the name that was probably meant."""
    found = _UNKNOWN(problem)
    if found is None:
        return ""
    name = found[1]
    before = re.search(rf"^[^=#\n]*?\b{re.escape(name)}\b", text, re.MULTILINE)
    line = f", line {text.count(chr(10), 0, before.end()) + 1}" if before else ""
    parts = (Settings, LakeSettings, JobSettings, TableSettings, ValueSettings)
    known = [one for part in parts for one in part.__struct_fields__]
    meant = difflib.get_close_matches(name, known, 1)
    return f"{line}; did you mean {meant[0]}?" if meant else line


def expanded(settings: Settings, topics: Iterable[str]) -> tuple[list[TableSettings], list[str]]:
    """Return one table for each topic, and a sentence for each topic whose table is another one's already.

    Patterns choose no internal topics: the job itself writes to the one of groups.
    """
    taken: dict[str, TableSettings] = {}
    problems = []
    visible = [topic for topic in topics if topic not in OWN_TOPICS]
    for declared in settings.tables:
        matched = [declared.topic]
        if declared.pattern:
            matched = [topic for topic in visible if re.fullmatch(declared.pattern, topic)]
        for topic in matched:
            name = declared.name.replace(TOPIC, _NO_NAME.sub("_", topic))
            found = msgspec.structs.replace(declared, topic=topic, pattern="", name=name)
            if (first := taken.setdefault(name, found).topic) != topic:
                problems.append(f"topics {first} and {topic} have the same table {name}: name them apart")
    return list(taken.values()), problems


def _table_settings(given: dict[str, Any]) -> TableSettings:
    """Separate the fields of a table from those of its values. Raises ValidationError."""
    ours = {key: given[key] for key in given.keys() & _OURS}
    values = {key: given[key] for key in given.keys() - _OURS}
    return msgspec.convert({**ours, "values": values}, TableSettings)


def _check(settings: Settings) -> None:
    """Check what types do not say. Raises ValueError."""
    chosen = {"subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "failondataloss"}
    for option in settings.source:
        if option.lower() in chosen or option.lower().startswith("value"):
            raise ValueError(f"[source] {option}: the job sets it; topics and formats belong to [[tables]]")
    if not settings.tables:
        raise ValueError("no [[tables]]: declare at least one, with a topic or a pattern")
    for one in settings.tables:
        if bool(one.topic) == bool(one.pattern):
            raise ValueError("[[tables]] has a topic or a pattern, one of the two")
        if not _NAME(one.name.replace(TOPIC, "x")):
            raise ValueError(f"[[tables]] name={one.name!r} is not NAMESPACE.NAME of letters, digits and _")
        re.compile(one.pattern)
