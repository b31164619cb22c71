"""The audit log: one line for each event, with principal, action, address, listener and result.

Events are logins, refused logins, administrative requests, and requests refused for lack of permission. Of a
request's content a line shows only names, such as topics. Each process limits the lines per kind and minute:
for each principal, for each address that failed to log in, and in total. It counts further events, and lines
that could not be written. (Kafka: `kafka.authorizer.logger` has a line for each refusal of each name, without
a limit, and none for logins and results of requests.)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.printable import printable

EVERY_MS: Final = 60_000
LINES_EACH: Final = 20
# Other lines of the same principal must not push out its acts of administration.
ACTS_EACH: Final = 1_000
# Lines of a kind, of all principals together: a client with a network of addresses must not fill the log.
LINES_ALL: Final = 1_000
ACTS_ALL: Final = 10_000
# Principals and addresses that are counted one by one, for each kind of line; all others share one count.
# Kinds are apart, so that a crowd of refused logins does not use up the places of those who log in.
PRINCIPALS_MAX: Final = 1_000
NAMES_MAX: Final = 10
NAME_SHOWN_MAX: Final = 255
WHY_SHOWN_MAX: Final = 1_000
OTHERS: Final = "others"
NO_ANSWER: Final = "no answer"


class Kind(Enum):
    """The kinds of events. The value of a kind is the field `event` of the JSON form."""

    LOGIN = "login"
    REFUSED_LOGIN = "refused login"
    ADMINISTRATION = "administration"
    REFUSAL = "refusal"

    @property
    def is_refusal(self) -> bool:
        return self in (Kind.REFUSED_LOGIN, Kind.REFUSAL)

    @property
    def lines_each(self) -> int:
        return ACTS_EACH if self is Kind.ADMINISTRATION else LINES_EACH

    @property
    def lines_all(self) -> int:
        return ACTS_ALL if self is Kind.ADMINISTRATION else LINES_ALL


_MANY: Final = {
    Kind.LOGIN: "logins",
    Kind.REFUSED_LOGIN: "refused logins",
    Kind.ADMINISTRATION: "acts of administration",
    Kind.REFUSAL: "refusals",
}


class Names(NamedTuple):
    """Names from a request: the first NAMES_MAX of them, cut if long, and the number of further names."""

    shown: tuple[str, ...] = ()
    more: int = 0

    @classmethod
    def of(cls, names: Iterable[Iterable[object]]) -> Names:
        """Return the Names for an iterable of names. Each name is an iterable of parts, to be joined."""
        rest = iter(names)
        first = itertools.islice(rest, NAMES_MAX)
        return cls(tuple(cut(" ".join(map(str, one))) for one in first), sum(1 for _ in rest))

    def __str__(self) -> str:
        text = ", ".join(map(quoted, self.shown))
        return f"{text} and {self.more} more" if self.more else text


class Event(NamedTuple):
    """An event, which becomes one line of the audit log. Empty fields are omitted from the line."""

    kind: Kind
    principal: str  # "" without a login
    client: str  # its address
    listener: str
    action: str  # an API or, of a login, its mechanism
    names: Names = Names()
    need: str = ""  # what a client would have needed
    result: str = ""
    why: str = ""

    @property
    def whose(self) -> str:
        """Return the name under which lines are counted: the principal, or the address if there is none."""
        return self.principal or self.client


class LeftOut(NamedTuple):
    """The number of events of a principal or address that the limits kept out of the log in one minute."""

    kind: Kind
    whose: str
    lines: int


class Gap(NamedTuple):
    """The number of lines that went to the broker's log because the audit log failed, and the reason."""

    lines: int
    why: str


Entry: TypeAlias = Event | LeftOut | Gap


def cut(name: str, most: int = NAME_SHOWN_MAX) -> str:
    return name if len(name) <= most else f"{name[:most]}…"


def quoted(name: str) -> str:
    """Return a name, cut if long, in quotes and with unprintable characters escaped."""
    return repr(cut(name))


def result_of(errors: dict[int, int] | None) -> str:
    """Return a text for the error codes of a response ({code: count}); None means no response."""
    if errors is None:
        return NO_ANSWER
    if not errors.keys() - {ErrorCode.NONE}:
        return "ok"
    words = {code: _word(code) for code in sorted(errors)}
    if len(errors) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{word} {errors[code]}" for code, word in words.items())


def _word(code: int) -> str:
    return "ok" if code == ErrorCode.NONE else error_code(code).name


# ---- lines


def as_text(entry: Entry) -> str:
    """Return an entry of the audit log as one printable line."""
    if isinstance(entry, Gap):
        return printable(
            f"{entry.lines} line(s) of a process are missing here and are in the broker's log: {entry.why}"
        )
    if isinstance(entry, LeftOut):
        return printable(
            f"{entry.whose}: {entry.lines} more {_MANY[entry.kind]} in the last {EVERY_MS // 1000} s"
        )
    principal = quoted(entry.principal) if " " in entry.principal else cut(entry.principal)
    who = f"{principal or 'a client'} from {entry.client} on {entry.listener}"
    why = cut(entry.why, WHY_SHOWN_MAX)
    match entry.kind:
        case Kind.LOGIN:
            text = f"{who} has logged in: {entry.action}"
        case Kind.REFUSED_LOGIN:
            names = f" as {entry.names}" if entry.names.shown else ""
            text = f"{who} has failed to log in{names}: {why}"
        case Kind.ADMINISTRATION:
            names = f" of {entry.names}" if entry.names.shown else ""
            result = f"{entry.result}: {why}" if why else entry.result
            text = f"{who} asked for {entry.action}{names}: {result}"
        case Kind.REFUSAL:
            need = f"{entry.need} {entry.names} for " if entry.need else ""
            names = f" of {entry.names}" if entry.names.shown and not entry.need else ""
            text = f"{who} is denied {need}{entry.action}{names}: {why}"
    return printable(text)


def as_json(entry: Entry) -> str:
    """Return an entry as a JSON object in ASCII, so that names cannot send escape codes to a terminal."""
    if isinstance(entry, Gap):
        return json.dumps({"event": "missing lines", "left_out": entry.lines, "why": entry.why})
    found: dict[str, Any] = {"event": entry.kind.value}
    if isinstance(entry, LeftOut):
        found |= {"left_out": entry.lines, "seconds": EVERY_MS // 1000, "principal": entry.whose}
        return json.dumps(found)
    found |= {
        "principal": entry.principal,
        "client": entry.client,
        "listener": entry.listener,
        "action": entry.action,
        "names": list(entry.names.shown),
        "more_names": entry.names.more,
        "need": entry.need,
        "result": entry.result or ("refused" if entry.kind.is_refusal else "ok"),
        "why": cut(entry.why, WHY_SHOWN_MAX),
    }
    return json.dumps({name: value for name, value in found.items() if value})


def line(entry: Entry, form: str, wall_ms: int) -> str:
    """Return an entry as a line of the audit file, with the time (UTC) and without a line break."""
    time = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    time = time.replace("+00:00", "Z")
    if form == "json":
        return f'{{"time": "{time}", {as_json(entry)[1:]}'
    return f"{time} {as_text(entry)}"


# ---- limits


@dataclass
class _Count:
    since_ms: int
    lines: int = 0
    more: int = 0


class _Counts:
    """Counts of the lines of one kind in a minute: in total, and for each principal or address."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._all = _Count(0)
        self._each: dict[str, _Count] = {}

    def takes(self, now_ms: int, whose: str) -> bool:
        """Return whether a line of `whose` may be written now. Count the line either way."""
        if now_ms >= self._all.since_ms + EVERY_MS:
            self._all = _Count(now_ms)
        if whose not in self._each and len(self._each) >= PRINCIPALS_MAX:
            whose = OTHERS
        one = self._each.setdefault(whose, _Count(now_ms))
        if one.lines >= self._kind.lines_each or self._all.lines >= self._kind.lines_all:
            one.more += 1
            return False
        one.lines += 1
        self._all.lines += 1
        return True

    def ended(self, now_ms: int | None) -> list[LeftOut]:
        """Drop ended minutes' counts (all if `now_ms` is None). Return how many events were suppressed."""
        ended = [w for w, one in self._each.items() if now_ms is None or now_ms >= one.since_ms + EVERY_MS]
        sums = ((whose, self._each.pop(whose).more) for whose in ended)
        return [LeftOut(self._kind, whose, more) for whose, more in sums if more]


class Audit:
    """The audit of one process. `write` gets the entries to log; `config` returns the current settings."""

    def __init__(self, config: Callable[[], BrokerConfig], write: Callable[[Entry], None]) -> None:
        self._config = config
        self._write = write
        self._counts = {kind: _Counts(kind) for kind in Kind}

    def tell(self, now_ms: int, event: Event) -> None:
        """Write an event, or only count it if the limit of lines for this minute is reached."""
        level = self._config().audit_log_level
        if level == "OFF" or (level == "WARN" and not event.kind.is_refusal):
            return
        if self._counts[event.kind].takes(now_ms, cut(event.whose)):
            self._write(event)

    def follow(self, now_ms: int) -> None:
        """Write how many events were suppressed in the minutes that have ended. Call it regularly."""
        self._sum_up(now_ms)

    def close(self) -> None:
        """Write how many events were suppressed so far. Call it before the process ends."""
        self._sum_up(None)

    def _sum_up(self, now_ms: int | None) -> None:
        for counts in self._counts.values():
            for left_out in counts.ended(now_ms):
                self._write(left_out)
