"""Regular expressions by which members of a group subscribe to topics.

They have the syntax of RE2 and match whole names, as in Kafka, which uses RE2J: `^orders` matches the topic
`orders` only. The time of a match is linear in the lengths of pattern and name. The tests list which patterns
only one of RE2 and RE2J accepts (`tests/support/topic_patterns.py`). (Kafka: TopicRegexResolver.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, Final

from mpbroker.coordinator.runtime.client_patterns import compile_pattern, options, re2
from mpbroker.protocol.errors import ApiError, ErrorCode

PATTERN_LENGTH_MAX: Final = 4096
SHOWN_LENGTH_MAX: Final = 100
# Patterns that are matched together. They have as many characters as one pattern may have.
PATTERNS_AT_ONCE: Final = 100
# Topics that the patterns of a group may match, one that two patterns match counted twice: some 60 MB.
MATCHES_MAX: Final = 1_000_000
REFRESH_INTERVAL_MIN_MS: Final = 10_000
_ALL_NAMES: Final = b"(?s).*"

_log = logging.getLogger("mpbroker.coordinator.groups")


def compiled(pattern: str) -> Any:
    """Return RE2's compiled pattern. Raises ApiError if the pattern is invalid or too large."""
    try:
        return compile_pattern(pattern, PATTERN_LENGTH_MAX, is_for_ascii=True)
    except ApiError as error:
        reason = error.message.removesuffix(".")
        raise _refusal(pattern, f"is not a valid regular expression: {reason}") from error


def _refusal(pattern: str, why: str) -> ApiError:
    shown = pattern if len(pattern) <= SHOWN_LENGTH_MAX else f"{pattern[:SHOWN_LENGTH_MAX]}…"
    return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex `{shown}` {why}.")


def resolve(
    group_id: str, patterns: Collection[str], topics: Iterable[str], is_allowed: Callable[[str], bool]
) -> Generator[None, None, dict[str, frozenset[str] | None]]:
    """Return the topics that each pattern matches and the client may describe (`is_allowed`).

    A pattern that cannot be resolved has None: its group keeps what the pattern has matched before. The
    generator yields after each name, or after a few milliseconds at worst. Topics and patterns may change
    between the steps; the result is about the state at the first step.
    """
    chunks = list(_chunks(patterns))
    names: list[str] = []
    for name in tuple(topics):
        if is_allowed(name):
            names.append(name)
        yield
    resolved: dict[str, frozenset[str] | None] = {}
    room = MATCHES_MAX
    for chunk in chunks:
        together = yield from _match_together(chunk, names, room)
        for place, pattern in enumerate(chunk):
            try:
                found = together[place] if together else (yield from _match_alone(pattern, names, room))
            except ApiError as error:
                _log.warning("a regular expression of group %s is not resolved: %s", group_id, error.message)
                resolved[pattern] = None
                continue
            resolved[pattern] = frozenset(found)
            room -= len(found)
            yield
    return resolved


def _chunks(patterns: Collection[str]) -> Iterator[list[str]]:
    """Yield the patterns in lists that are matched together."""
    chunk: list[str] = []
    length = 0
    for pattern in patterns:
        length += len(pattern)
        if chunk and (length > PATTERN_LENGTH_MAX or len(chunk) == PATTERNS_AT_ONCE):
            yield chunk
            chunk, length = [], len(pattern)
        chunk.append(pattern)
    if chunk:
        yield chunk


def _match_together(
    patterns: list[str], names: list[str], room: int
) -> Generator[None, None, list[list[str]] | None]:
    """Return the names that each pattern matches. One automaton for all patterns makes this fast.

    Return None if it needs too much memory, refuses a pattern, or finds more than `room` matches.
    """
    automaton = re2().Set.FullMatchSet(options(is_latin=True))
    try:
        for pattern in patterns:
            automaton.Add(pattern.encode("latin-1"))
            yield
        automaton.Add(_ALL_NAMES)
        automaton.Compile()
    except (UnicodeEncodeError, re2().error):
        return None
    found: list[list[str]] = [[] for _ in range(len(patterns) + 1)]
    for name in names:
        places = automaton.Match(name)
        # An automaton without memory matches nothing, not even _ALL_NAMES, and raises nothing.
        if places is None or (room := room - len(places) + 1) < 0:
            return None
        for place in places:
            found[place].append(name)
        yield
    return found


def _match_alone(pattern: str, names: list[str], room: int) -> Generator[None, None, list[str]]:
    """Return the names that a pattern matches. Raises ApiError if it is invalid or matches too many."""
    regex = compiled(pattern)
    found: list[str] = []
    for name in names:
        if regex.fullmatch(name.encode()):
            found.append(name)
        if len(found) > room:
            raise _refusal(pattern, f"and others of the group match more than {MATCHES_MAX} topics")
        yield
    return found


def is_refresh_due(
    now_ms: int,
    last_ms: int | None,
    interval_ms: int,
    *,
    subscribed: int,
    resolved: int,
    is_new: bool,
    has_new_topics: bool,
) -> bool:
    """Return whether to resolve the patterns of a group. (No resolution is under way.)

    `last_ms` is the time of the last result, None without one. `subscribed` and `resolved` count patterns.
    `is_new`: a member has just brought a pattern. `has_new_topics`: topics were created since the last
    result. A result from the future counts as old: the wall clock was set back.
    (Kafka: GroupMetadataManager.maybeUpdateRegularExpressions.)
    """
    if not subscribed or last_ms is None:
        return bool(subscribed)
    age_ms = now_ms - last_ms
    if 0 <= age_ms <= REFRESH_INTERVAL_MIN_MS:
        return False
    return is_new or subscribed != resolved or has_new_topics or not 0 <= age_ms <= interval_ms
