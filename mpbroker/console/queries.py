"""The queries of the page, parsed and checked. Without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from mpbroker.client.consumer import parse_isolation
from mpbroker.client.errors import BadText
from mpbroker.client.positions import Start, parse_start
from mpbroker.console.records import RecordQuery

NEWEST: Final = "newest"
LIMIT_MAX: Final = 200
FIELDS_MAX: Final = 20
_LONGEST: Final = 18  # digits of an offset

_Value = TypeVar("_Value")


class BadQuery(Exception):
    """A malformed query. The message names the problem."""


class Query:
    """The names and values of one query. `has_token`: the request has the console's token."""

    def __init__(self, text: bytes) -> None:
        self.has_token = False
        try:
            pairs = parse_qsl(
                text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
            )
        except ValueError as error:
            raise BadQuery(f"the query cannot be read: {error}") from error
        self._values = dict(pairs)

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def needed(self, name: str) -> str:
        """Return a required value. Raises BadQuery if it is missing."""
        if not (found := self.text(name)):
            raise BadQuery(f"{name} is missing")
        return found

    def number(self, name: str, otherwise: int) -> int:
        """Return a value as a number, or `otherwise` if it is missing. Raises BadQuery for other text."""
        if not (found := self.text(name)):
            return otherwise
        if not _is_number(found.removeprefix("-")):
            raise BadQuery(f"{name} is a number, not {found[:50]!r}")
        return int(found)

    def records(self, most: int) -> RecordQuery:
        """Return the query of a request for records. Raises BadQuery.

        The page shows at most `most` bytes of each key, value or header.
        """
        now_ms = time.time_ns() // 1_000_000
        start = partial(parse_start, now_ms=now_ms)
        return RecordQuery(
            topic=self.needed("topic"),
            partition=self.number("partition", -1),
            start=None if self.text("from") in ("", NEWEST) else self._parsed("from", start),
            limit=min(max(self.number("limit", 50), 1), LIMIT_MAX),
            text=self.text("text").encode().lower(),
            isolation=self._parsed("isolation", parse_isolation, "read_uncommitted"),
            with_markers=self.text("markers") != "0",
            positions=self._positions(),
            most=most,
        )

    def one_record(self, most: int) -> RecordQuery:
        """Return the query for a single record. `most`: see `records`. Raises BadQuery."""
        return RecordQuery(
            topic=self.needed("topic"),
            partition=self.number("partition", 0),
            start=Start("offset", self.number("offset", 0)),
            limit=1,
            most=most,
        )

    def _parsed(self, name: str, parse: Callable[[str], _Value], otherwise: str = "") -> _Value:
        """Return a value as parsed by `parse`. If it is missing, parse `otherwise`. Raises BadQuery."""
        text = self.text(name) or otherwise
        try:
            return parse(text)
        except BadText as error:
            raise BadQuery(f"{name} {text[:50]!r}: {error}") from error

    def _positions(self) -> dict[int, int] | None:
        """Parse the value `positions`, PARTITION:OFFSET,… Return None if it is missing. Raises BadQuery."""
        if not (text := self.text("positions")):
            return None
        pairs = [one.partition(":")[::2] for one in text.split(",")]
        if not all(_is_number(part) for pair in pairs for part in pair):
            raise BadQuery("positions are PARTITION:OFFSET, with commas between them")
        return {int(number): int(offset) for number, offset in pairs}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST
