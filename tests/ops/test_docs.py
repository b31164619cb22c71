"""Files that are made from the code, or from measurements, are what their programs write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import ApiKey
from ops.bench import growth_curves
from ops.docs import compatibility, dashboard, figures, metrics, monitoring, not_served, security

Made = Callable[[str], str]


@pytest.mark.parametrize(
    ("file", "made", "program"),
    [
        (compatibility.PAGE, lambda _: compatibility.page(), "compatibility"),
        (metrics.PAGE, lambda _: metrics.page(), "metrics"),
        (monitoring.PAGE, lambda _: monitoring.page(), "monitoring"),
        (dashboard.FILE, lambda _: dashboard.text(), "dashboard"),
        (security.PAGE, lambda text: security.page(text, security.measured()), "security"),
        (figures.README, lambda text: figures.readme(text, figures.read()), "figures"),
        (figures.PAGE, lambda text: figures.page(text, figures.read(), growth_curves.read()), "figures"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_a_file_that_is_made_is_up_to_date(file: Path, made: Made, program: str) -> None:
    text = file.read_text()
    assert text == made(text), f"run: python -m ops.docs.{program}"


def test_the_page_of_measurements_has_no_table_of_others() -> None:
    by_hand = re.sub(r"<!-- table .*?<!-- end -->", "", figures.PAGE.read_text(), flags=re.DOTALL)
    with_figures = [line for line in by_hand.splitlines() if re.match(r"\|.*\| *[\d.,]+ *\|", line)]
    assert with_figures == []


def test_each_api_of_kafka_is_served_or_explained() -> None:
    explained = [key for one in not_served.NOT_SERVED for key in one.keys]
    told = [*all_apis(), *explained, *not_served.AMONG_BROKERS]
    names = {key.name: told.count(key) for key in ApiKey}
    assert [name for name, times in names.items() if times == 0] == [], "say what a user loses"
    assert [name for name, times in names.items() if times > 1] == [], "served now, or told twice"
    assert all(one.lost and one.tools and one.instead for one in not_served.NOT_SERVED)


def test_each_alert_says_what_it_means() -> None:
    rules = (monitoring.ROOT / "ops/prometheus/mpbroker.rules.yml").read_text()
    assert rules.count("- alert: ") == len(re.findall(r"^ +description: \S", rules, re.MULTILINE)) > 10
