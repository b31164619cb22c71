"""Lines of standard input as records, without I/O: text with or without keys, or JSON."""

from __future__ import annotations

import msgspec

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.records import json_lines
from mpbroker.cli.text.escapes import unescape
from mpbroker.records.record import Header, NewRecord
from mpbroker.registry.json_values import Encoder


class Format(msgspec.Struct, frozen=True):
    """The format of lines. `null`: the text that means null. `headers`: headers added to every record.

    `ignores_partition`: the partition in a line of JSON is ignored.
    """

    key_separator: str | None = None
    null: str | None = None
    as_json: bool = False
    headers: tuple[Header, ...] = ()
    ignores_partition: bool = False
    encoders: json_lines.Encoders = json_lines.NO_SCHEMAS


class LineRecords:
    """Makes records from lines, and counts the lines. Raises CliError if the format contradicts itself."""

    def __init__(self, form: Format) -> None:
        if form.as_json and (form.key_separator is not None or form.null is not None):
            raise CliError("--json has keys and null of its own: leave -K and --null out", USAGE_ERROR)
        if form.ignores_partition and not form.as_json:
            raise CliError("--ignore-partition goes with --json: no other line names one", USAGE_ERROR)
        self.number = 0
        self._form = form
        self._separator = unescape(form.key_separator) if form.key_separator else None
        self._null = None if form.null is None else unescape(form.null)
        self._keyed = 0

    @property
    def is_plain(self) -> bool:
        """Return whether each line is only a value, so that `plain` can make the records of many lines."""
        form = self._form
        is_text = not form.as_json and form.encoders == json_lines.NO_SCHEMAS
        return is_text and self._separator is None and self._null is None

    def plain(self, lines: list[bytes], now_ms: int) -> list[NewRecord]:
        """Return records whose values are these lines."""
        self.number += len(lines)
        headers = self._form.headers
        return [NewRecord(line, None, now_ms, headers) for line in lines]

    def parse(self, line: bytes, now_ms: int) -> tuple[NewRecord, int | None] | None:
        """Return the record of a line, and the partition if the line names one. Raises CliError.

        A blank line gives None in JSON input, and a record with an empty value in text input.
        """
        self.number += 1
        if self._form.as_json:
            if not line.strip():
                return None
            parsed = json_lines.parse(line, self.number, now_ms, self._form.encoders)
            record = parsed.record
            if self._form.headers:
                record = msgspec.structs.replace(record, headers=record.headers + self._form.headers)
            return record, None if self._form.ignores_partition else parsed.partition
        key, value = self._split(line)
        if self._null is not None:
            key = None if key == self._null else key
            value = None if value == self._null else value
        try:
            encoders = self._form.encoders
            key, value = _encoded(key, encoders.key), _encoded(value, encoders.value)
        except ValueError as error:
            raise CliError(f"line {self.number:,}: {error}", USAGE_ERROR) from error
        return NewRecord(value, key, now_ms, self._form.headers), None

    def _split(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        if self._separator is None:
            return None, line
        key, found, value = line.partition(self._separator)
        if not found:
            return None, line
        self._keyed += 1
        return key, value

    def warning(self) -> str:
        """Return a warning if the format has a key separator and no line had it, else ""."""
        if self._separator is None or not self.number or self._keyed:
            return ""
        return f"no line had the key separator {self._form.key_separator!r}: their records have no key"


def _encoded(data: bytes | None, encoder: Encoder | None) -> bytes | None:
    return data if data is None or encoder is None else encoder.encode(data)
