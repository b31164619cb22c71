"""Java's properties syntax, entry by entry and turned inside out by Hypothesis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.config.properties import Entry, PropertiesError, parse


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("# only\n ! comments\n\n", []),
        ("a=1", [("a", "1", 1)]),
        ("a = 1 ", [("a", "1 ", 1)]),
        ("a:1\nb\t2", [("a", "1", 1), ("b", "2", 2)]),
        ("a  =  b = c", [("a", "b = c", 1)]),
        ("listeners=PLAINTEXT://:9092", [("listeners", "PLAINTEXT://:9092", 1)]),
        ("a", [("a", "", 1)]),
        ("a=1,\\\n   2,\\\n   3\nb=4", [("a", "1,2,3", 1), ("b", "4", 4)]),
        ("a=x\\\\\nb=y", [("a", "x\\", 1), ("b", "y", 2)]),
        ("a\\ b\\=c=d", [("a b=c", "d", 1)]),
        ("a=\\u00e9\\t\\q", [("a", "\u00e9\tq", 1)]),
        ("a=1\r\nb=2\rc=3", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        ("a=1\\", [("a", "1", 1)]),
        ("a=1\\\n# no comment", [("a", "1# no comment", 1)]),
    ],
)
def test_syntax(text: str, entries: list[tuple[str, str, int]]) -> None:
    assert parse(text) == [Entry(*entry) for entry in entries]


def test_bad_escape_names_its_line() -> None:
    with pytest.raises(PropertiesError, match=r"line 2: '\\u12' is not an escape"):
        parse("a=1\nb=\\u12")


def _escape(text: str, specials: str) -> str:
    return "".join(f"\\{char}" if char in specials else char for char in text)


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r\f"), max_size=20)


@given(st.lists(st.tuples(_TEXT.filter(bool), _TEXT)))
def test_what_was_escaped_comes_back(pairs: list[tuple[str, str]]) -> None:
    lines = [_escape(key, "\\=: #!") + "=" + _escape(value, "\\ ") for key, value in pairs]
    assert [(entry.key, entry.value) for entry in parse("\n".join(lines))] == pairs


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        entries = parse(text)
    except PropertiesError:
        return
    assert len(entries) <= len(text) + 1
