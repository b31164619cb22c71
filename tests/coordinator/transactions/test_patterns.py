"""Regular expressions of clients: they say what Python's say, and none of them takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.transactions.patterns import BadPattern, Pattern

atoms = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c]", "\\d", "\\W", "\\.", "[\\d-]", "[]a]", "^", "$", "(?:)"]
)
repeats = st.sampled_from(["", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"])


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(st.sampled_from(["(", "(?:"]), st.lists(parts, max_size=3).map("|".join), repeats)
    grouped = groups.map(lambda g: f"{g[0]}{g[1]}){g[2]}")
    return st.lists(parts | grouped, max_size=4).map("".join)


simple = st.tuples(atoms, repeats).map(lambda p: p[0] if p[0] in "^$" else "".join(p))
patterns = st.recursive(simple, joined, max_leaves=6)


@given(patterns, st.lists(st.text("abc1.-\n", max_size=6), max_size=5))
def test_what_matches_in_python_matches_here(pattern: str, texts: list[str]) -> None:
    ours, theirs = Pattern(pattern), re.compile(pattern.replace("$", "\\Z"))
    for text in texts:
        assert ours.matches(text) == bool(theirs.fullmatch(text)), text


@given(st.text("ab()[]{}|*+?^$\\.-,1d<>P:", max_size=12), st.text("ab1", max_size=4))
def test_any_text_is_a_pattern_or_none(pattern: str, text: str) -> None:
    try:
        found = Pattern(pattern)
    except BadPattern:
        return
    assert found.matches(text) in (True, False)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[a", "*", "a**", "a{2}{2}", "\\", "\\b", "\\Q", "[b-a]", "(?i)a"),
        *("a{3,2}", "a{1001}", "((a{100}){100})", "((((){1000}){1000}){1000})", "(" * 200 + ")" * 200),
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(pattern)


def test_a_brace_that_limits_nothing_is_one() -> None:
    assert Pattern("a{1000}").matches("a" * 1000)
    assert Pattern("a{b}").matches("a{b}")
    assert Pattern("(?P<name>a)(?<other>b)\\n").matches("ab\n")
    assert Pattern("grü.e").matches("grüße")


def test_nothing_is_tried_twice() -> None:
    """Python's `re` would take longer than anybody lives."""
    began = time.process_time()
    text = "a" * 2000
    for pattern in ("(a+)+b", "(a|a)*b", "(a*)*(a*)*b", ".*.*.*.*.*b"):
        assert not Pattern(pattern).matches(text)
    assert time.process_time() - began < 5
