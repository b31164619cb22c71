"""What is made from measurements: the tables of README and PERFORMANCE."""

from __future__ import annotations

import re

from ops.bench import growth_curves
from ops.docs import figures
from ops.docs.figures import PAGE, README


def test_pages_say_what_was_measured() -> None:
    """README and PERFORMANCE have the figures of the recorded runs, and no table of others."""
    text = README.read_text()
    assert figures.readme(text, figures.read()) == text, "run: python -m ops.docs.figures"
    text = PAGE.read_text()
    assert figures.page(text, figures.read(), growth_curves.read()) == text, "run: python -m ops.docs.figures"
    by_hand = re.sub(r"<!-- table .*?<!-- end -->", "", text, flags=re.DOTALL)
    with_figures = [line for line in by_hand.splitlines() if re.match(r"\|.*\| *[\d.,]+ *\|", line)]
    assert with_figures == []
