"""Tables that are made, between comments of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.docs.tables import TableError, filled

PAGE = Path("docs/PAGE.md")
TEXT = "before\n<!-- table one -->\nold\n<!-- end -->\nbetween\n<!-- table two -->\n<!-- end -->\nbehind\n"


def test_tables_are_made_anew_and_the_rest_stays() -> None:
    made = filled(TEXT, PAGE, {"one": lambda: ["| a |", "|---|"], "two": lambda: ["| b |"]})
    assert made == (
        "before\n<!-- table one -->\n| a |\n|---|\n<!-- end -->\nbetween\n"
        "<!-- table two -->\n| b |\n<!-- end -->\nbehind\n"
    )


def test_a_table_without_a_place_is_refused() -> None:
    """It would be appended, or left out, and nobody would know."""
    with pytest.raises(TableError, match=r"PAGE\.md: write <!-- table three --> and <!-- end -->"):
        filled(TEXT, PAGE, {"one": list, "two": list, "three": list})


def test_a_table_that_is_not_known_is_refused() -> None:
    with pytest.raises(TableError, match=r"PAGE\.md: the table two lacks 'two'"):
        filled(TEXT, PAGE, {"one": list})


def test_a_table_that_lacks_what_it_is_of_is_named() -> None:
    curves: dict[str, list[str]] = {}
    with pytest.raises(TableError, match=r"PAGE\.md: the table two lacks 'hops'"):
        filled(TEXT, PAGE, {"one": list, "two": lambda: curves["hops"]})
