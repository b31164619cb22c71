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
    alerts = "\n".join(monitoring.alert_rows())
    in_the_file = re.findall(r"^ +- alert: (\w+)$", monitoring.RULES.read_text(), re.MULTILINE)
    in_the_table = re.findall(r"^\| `(\w+)` \|", alerts, re.MULTILINE)
    assert [rule.alert for rule in monitoring.alerts()] == in_the_table == in_the_file
    assert set(monitoring.INSTEAD) <= set(in_the_file)
    assert "{{" not in alerts


def test_each_api_of_kafka_is_served_or_explained() -> None:
    explained = [key for one in not_served.NOT_SERVED for key in one.keys]
    told = [*all_apis(), *explained, *not_served.AMONG_BROKERS]
    names = {key.name: told.count(key) for key in ApiKey}
    assert [name for name, times in names.items() if times == 0] == [], "say what a user loses"
    assert [name for name, times in names.items() if times > 1] == [], "served now, or told twice"
    assert all(one.lost and one.tools and one.instead for one in not_served.NOT_SERVED)
