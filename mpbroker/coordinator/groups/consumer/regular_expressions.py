"""Placeholder until the regular expressions are merged."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from mpbroker.coordinator.runtime.host import Host
from mpbroker.protocol.errors import ApiError, ErrorCode

MIN_REFRESH_MS = 10_000


def check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


def is_refresh_due(
    *, last_ms: int | None, now_ms: int, interval_ms: int, has_unresolved: bool, has_new_topics: bool
) -> bool:
    if last_ms is not None and now_ms <= last_ms + MIN_REFRESH_MS:
        return False
    return has_unresolved or has_new_topics or last_ms is None or now_ms > last_ms + interval_ms


@dataclass(eq=False)
class Resolver:
    _host: Host

    @property
    def version(self) -> int:
        return self._host.metadata.next_offset

    def resolve(
        self, patterns: Iterable[str], principal: str, client_host: str
    ) -> Generator[None, None, Mapping[str, frozenset[str]]]:
        yield
        return {p: frozenset(n for n in self._host.metadata.ids if re.fullmatch(p, n)) for p in patterns}
