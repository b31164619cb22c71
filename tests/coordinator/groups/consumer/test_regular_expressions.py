"""Regular expressions of subscriptions: which topics they match, what is refused, costs, and refreshes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]

from mpbroker.coordinator.groups.consumer import regular_expressions
from mpbroker.coordinator.groups.consumer.regular_expressions import (
    PATTERN_LENGTH_MAX,
    PATTERNS_AT_ONCE,
    compiled,
    is_refresh_due,
    resolve,
)
from mpbroker.protocol.errors import ApiError, ErrorCode
from tests.support.forms import rounds
from tests.support.topic_patterns import DIFFERENCES, INVALID, Difference, random_name, random_pattern

TOPICS = ("orders", "orders-1", "ORDERS", "my.orders", "orders_", "__consumer_offsets", "a")
MINUTE_MS = 60_000


def resolved(
    patterns: Collection[str],
    topics: Iterable[str] = TOPICS,
    is_allowed: Callable[[str], bool] = lambda _: True,
) -> dict[str, set[str] | None]:
    return result_of(resolve("g", patterns, topics, is_allowed))


def result_of(job: Generator[None, None, dict[str, frozenset[str] | None]]) -> dict[str, set[str] | None]:
    while True:
        try:
            next(job)
        except StopIteration as stop:
            return {one: None if names is None else {*names} for one, names in stop.value.items()}


def matched(pattern: str) -> set[str] | None:
    return resolved([pattern])[pattern]


# ---- which topics


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", {"orders"}),
        ("^orders", {"orders"}),
        ("^orders.*", {"orders", "orders-1", "orders_"}),
        ("orders$|a", {"orders", "a"}),
        ("(?i)orders", {"orders", "ORDERS"}),
        (r".*\.orders", {"my.orders"}),
        (r"\pL+", {"orders", "ORDERS", "a"}),
        (r"\pL{6}|\pL{1000}", {"orders", "ORDERS"}),
        (r"[^é]+", set(TOPICS)),
        ("тема|a", {"a"}),
        (r"\x{3b1}|a", {"a"}),
        ("", set()),
        ("a\0?", {"a"}),
        ("\N{REPLACEMENT CHARACTER}", set()),
        (".*", set(TOPICS)),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, topics: set[str]) -> None:
    assert matched(pattern) == topics
    assert {name for name in TOPICS if compiled(pattern).fullmatch(name)} == topics


def test_each_pattern_has_the_topics_that_the_client_may_describe() -> None:
    asked = []

    def is_allowed(name: str) -> bool:
        asked.append(name)
        return not name.startswith("_")

    found = resolved([".*", ".*s", "no"], is_allowed=is_allowed)
    assert found == {".*": {*TOPICS} - {"__consumer_offsets"}, ".*s": {"orders", "my.orders"}, "no": set()}
    assert sorted(asked) == sorted(TOPICS), "it is asked once of each topic"


def test_topics_may_change_between_the_steps() -> None:
    ids = {"a": b"1", "b": b"2"}
    job = resolve("g", [".", "[ab]"], ids, lambda _: True)
    next(job)
    del ids["a"]
    ids |= {str(number): b"" for number in range(100)}
    assert result_of(job) == {".": {"a", "b"}, "[ab]": {"a", "b"}}


def python_pattern(pattern: str) -> str | None:
    """Return Python's form of a pattern, None if it has something that Python lacks or takes differently."""
    lacking = (r"\p", r"\P", r"\x{", r"\Q", "[[:", "(?U", "(?i", "(?s", "(?m", "(?-", "{,")
    return None if any(one in pattern for one in lacking) else pattern.replace(r"\z", r"\Z")


def test_patterns_match_as_they_do_alone_and_as_python_says() -> None:
    """Compare patterns that are matched together with each alone, and with Python's `re`."""
    rng = random.Random(os.urandom(8).hex())
    seen = 0
    for _ in range(rounds(50)):
        patterns = {random_pattern(rng) for _ in range(rng.choice((1, 5, 250)))}
        names = {random_name(rng) for _ in range(20)}
        found = resolved(patterns, names)
        for pattern in patterns:
            try:
                alone = compiled(pattern)
            except ApiError:
                assert found[pattern] is None
                continue
            assert found[pattern] == {name for name in names if alone.fullmatch(name)}, pattern
            # Repeats of what may be empty take Python exponential time.
            theirs = python_pattern(pattern) if len(pattern) < 12 else None
            if theirs is not None:
                seen += 1
                assert found[pattern] == {one for one in names if re.fullmatch(theirs, one, re.ASCII)}, (
                    pattern
                )
    assert seen


# ---- what is a pattern


@pytest.mark.parametrize("pattern", INVALID)
def test_an_invalid_pattern_is_refused_with_the_reason(pattern: str) -> None:
    for text in (
        pattern,
        f"orders|{pattern}",
        f"(a){pattern}(b)" if pattern[0] not in "()*+?[\\" else pattern,
    ):
        with pytest.raises(ApiError, match="is not a valid regular expression: ") as refused:
            compiled(text)
        assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert f"`{text}`" in refused.value.message


@pytest.mark.parametrize("difference", DIFFERENCES.values(), ids=DIFFERENCES)
def test_differences_to_kafka_are_those_that_are_listed(difference: Difference) -> None:
    try:
        compiled(difference.pattern)
    except ApiError:
        assert not difference.is_accepted
    else:
        assert difference.is_accepted


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * 65_000, "The pattern has more than 4096 characters"),
        ("é" * (PATTERN_LENGTH_MAX + 1), "The pattern has more than 4096 characters"),
        ("(a{1000}){1000}", "invalid repetition size: {1000}"),
        ("((a{100}){100}){100}", "invalid repetition size: {100}"),
        (r"(\pL{100}[\x{100}]){9}", "pattern too large - compile failed"),
        (r"\pL{1000}я", "pattern too large - compile failed"),
    ],
)
def test_a_pattern_that_costs_too_much_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        compiled(pattern)
    assert refused.value.message.endswith(f": {reason}.")
    assert len(refused.value.message) < 300, "the text does not have all of the pattern"


@pytest.mark.parametrize("length", [PATTERN_LENGTH_MAX - 1, PATTERN_LENGTH_MAX])
def test_a_long_list_of_topics_is_a_pattern(length: int) -> None:
    """The patterns of a subscription are joined by librdkafka."""
    joined = "|".join(f"^team-{number}-.*" for number in range(1000))[:length].rpartition("|")[0]
    found = matched_by(joined, "team-7-x", "team-7", "team-200-", "team-2000-")
    assert found == {"team-7-x", "team-200-"}


def matched_by(pattern: str, *names: str) -> set[str] | None:
    return resolved([pattern], names)[pattern]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("(a+)+b", False),
        ("(a|a)*b", False),
        ("(a*)*b", False),
        ("(a?){249}a{249}", True),
        ("(" * 1000 + "a" + ")" * 1000 + "+", True),
        ("((a?b?c?){100}){10}", True),
        ("a{1000}|(.?){1000}", True),
    ],
)
def test_an_explosive_pattern_takes_linear_time(pattern: str, matches: bool) -> None:
    """With backtracking most of them would not end."""
    name = "a" * 249
    assert matched_by(pattern, name) == ({name} if matches else set())
    assert compiled(pattern).groups == 0, "no group captures, which would take RE2 long"


# ---- many patterns, much memory


@pytest.mark.parametrize("count", [1, PATTERNS_AT_ONCE, PATTERNS_AT_ONCE + 1, 3 * PATTERNS_AT_ONCE])
def test_many_patterns_are_matched_in_parts(count: int) -> None:
    patterns = [f"t{number}-.*" for number in range(count)]
    assert resolved(patterns, ["t0-a", "t99-b", "t100-c", "t299-d"]) == {
        pattern: {name for name in ("t0-a", "t99-b", "t100-c", "t299-d") if name.startswith(pattern[:-2])}
        for pattern in patterns
    }


def test_no_pattern_is_no_work() -> None:
    assert resolved([]) == {}


@pytest.mark.parametrize(
    "patterns",
    [
        pytest.param(["(?P<n", "a|orders"], id="an invalid one"),
        pytest.param(["a" * 5000, "a|orders"], id="a long one"),
    ],
)
def test_what_cannot_be_resolved_is_told_apart_from_what_matches_nothing(
    patterns: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Other versions and Apache Kafka may have written them to the log."""
    assert resolved(patterns) == {patterns[0]: None, "a|orders": {"a", "orders"}}
    (line,) = caplog.messages
    assert line.startswith("a regular expression of group g is not resolved: SubscribedTopicRegex `")


class SetWithoutMemory(re2.Set):  # type: ignore[misc]
    """An automaton whose memory ends with the third name: it matches nothing, and raises nothing."""

    def __init__(self, anchor: Any, options: Any) -> None:
        super().__init__(anchor, options)
        self.matched = 0

    def Match(self, text: str) -> list[int] | None:  # noqa: N802 - RE2's name
        self.matched += 1
        return super().Match(text) if self.matched < 3 else None  # type: ignore[no-any-return]


@pytest.mark.parametrize("other", ["тема", "(a?b?c?){300}", ".*b.{200}"])
def test_what_cannot_be_matched_together_is_matched_alone(other: str) -> None:
    patterns = [other, *(f"{other}|orders-{number}" for number in range(20)), "orders"]
    found = resolved(patterns)
    assert (len(found), found["orders"], found[f"{other}|orders-1"] >= {"orders-1"}) == (22, {"orders"}, True)


def test_an_automaton_that_runs_out_of_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = resolved([".*s", ".*", "a"])
    monkeypatch.setattr(re2, "Set", SetWithoutMemory)
    assert resolved([".*s", ".*", "a"]) == expected


def test_the_matches_of_a_group_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(regular_expressions, "MATCHES_MAX", 10)
    names = list("abcdef")
    assert resolved([".", "[a-d]", "[a-c]", "..", "a"], names) == {
        ".": {*names},
        "[a-d]": {*"abcd"},
        "[a-c]": None,
        "..": set(),
        "a": None,
    }
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        f"SubscribedTopicRegex `{pattern}` and others of the group match more than 10 topics."
        for pattern in ("[a-c]", "a")
    ]


# ---- when


@pytest.mark.parametrize(
    ("how", "is_due"),
    [
        ({}, False),
        ({"is_new": True}, True),
        ({"resolved": 1}, True),
        ({"resolved": 3}, True),
        ({"has_new_topics": True}, True),
        ({"now_ms": 10_001, "is_new": True}, True),
        ({"now_ms": 10_000, "is_new": True}, False),
        ({"now_ms": 10_000, "resolved": 1, "has_new_topics": True}, False),
        ({"now_ms": 10 * MINUTE_MS}, False),
        ({"now_ms": 10 * MINUTE_MS + 1}, True),
        ({"now_ms": -1}, True),
        ({"last_ms": None, "resolved": 0}, True),
        ({"last_ms": None, "resolved": 0, "subscribed": 0}, False),
        ({"subscribed": 0, "resolved": 1, "now_ms": 20 * MINUTE_MS}, False),
    ],
)
def test_when_a_refresh_is_due(how: dict[str, Any], is_due: bool) -> None:
    usual: dict[str, Any] = {
        "now_ms": MINUTE_MS,
        "last_ms": 0,
        "interval_ms": 10 * MINUTE_MS,
        "subscribed": 2,
        "resolved": 2,
        "is_new": False,
        "has_new_topics": False,
    }
    assert is_refresh_due(**{**usual, **how}) is is_due


@pytest.mark.process
def test_re2_is_imported_by_its_first_use_and_starts_no_thread() -> None:
    script = (
        "import sys, os; from mpbroker.coordinator import process\n"
        "from mpbroker.coordinator.groups.consumer.regular_expressions import compiled\n"
        "assert 're2' not in sys.modules; compiled('a'); print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
