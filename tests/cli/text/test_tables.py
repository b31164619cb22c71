"""Tables in the width of a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.cli.text.tables import cells_of, heading, layout

HEADINGS = ("TOPIC", "LOG-END-OFFSET", "CLIENT-ID")
ROWS = [("orders", "12", "c" * 30), ("o", "1234567", "d")]


def test_a_table_that_fits() -> None:
    assert layout(HEADINGS, ROWS, right={1}, width=None) == [
        "TOPIC   LOG-END-OFFSET  CLIENT-ID",
        "orders              12  cccccccccccccccccccccccccccccc",
        "o              1234567  d",
    ]


def test_long_texts_are_folded_and_headings_are_not() -> None:
    assert layout(HEADINGS, ROWS, right={1}, width=40) == [
        "TOPIC   LOG-END-OFFSET  CLIENT-ID",
        "orders              12  cccccccccccccccc",
        "                        cccccccccccccc",
        "o              1234567  d",
    ]


def test_what_fits_in_no_way_is_a_list() -> None:
    assert layout(HEADINGS, ROWS, right={1}, width=20) == [
        "TOPIC           orders",
        "LOG-END-OFFSET  12",
        f"CLIENT-ID       {'c' * 30}",
        "",
        "TOPIC           o",
        "LOG-END-OFFSET  1234567",
        "CLIENT-ID       d",
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("end_offset", "END-OFFSET"), ("LAG", "LAG"), ("first time", "FIRST-TIME")]
)
def test_headings(name: str, expected: str) -> None:
    assert heading(name) == expected


TEXTS = st.text(st.sampled_from("ab日é"), max_size=20)


@given(
    st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 9999).map(str)), max_size=4),
    st.integers(1, 120),
    st.sampled_from(["B", "A-HEADING-THAT-IS-LONG"]),
)
def test_nothing_is_lost_and_tables_fit(rows: list[tuple[str, str, str]], width: int, second: str) -> None:
    lines = layout(("A", second, "C"), rows, right={2}, width=width)
    told = "".join("".join(lines).split())
    for row in rows:
        assert all(told.count(letter) >= "".join(row).count(letter) for letter in "日é")
    if lines and lines[0].split() == ["A", second, "C"]:
        assert max(map(cells_of, lines)) <= width


def test_a_table_of_many_columns_is_cut_nowhere() -> None:
    headings = ("MEMBER-ID", "GROUP-INSTANCE-ID", "CLIENT-ID", "HOST", "ASSIGNMENT")
    row = ("rdkafka-" + "0123456789" * 4, "i-1", "rdkafka", "127.0.0.1", "orders(0,1,2,3,4,5,6,7)")
    lines = layout(headings, [row], right=(), width=80)
    assert max(map(cells_of, lines)) <= 80
    columns = [lines[0].index(name) for name in headings]
    cells = [line[columns[-1] :].strip() for line in lines[1:]]
    assert "".join(cells) == row[-1]
