"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import re

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import ApiKey
from ops.docs import compatibility, metrics, monitoring, not_served


def test_the_compatibility_page_is_up_to_date() -> None:
    assert compatibility.PAGE.read_text() == compatibility.page(), "run: python -m ops.docs.compatibility"


def test_the_metrics_page_is_up_to_date() -> None:
    assert metrics.PAGE.read_text() == metrics.page(), "run: python -m ops.docs.metrics"


def test_the_tables_of_the_monitoring_page_are_up_to_date() -> None:
    assert monitoring.PAGE.read_text() == monitoring.page(), "run: python -m ops.docs.monitoring"


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
