"""The tables of docs/SECURITY.md that are made from measurements."""

from __future__ import annotations

from ops.docs import security
from ops.docs.security import PAGE


def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == security.page(text, security.measured()), "run: python -m ops.docs.security"
