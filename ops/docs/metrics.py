"""Writes docs/METRICS.md from what the code registers: `python -m ops.docs.metrics`."""

from __future__ import annotations

from pathlib import Path

from mpbroker.metrics.catalogue import table

PAGE = Path(__file__).parents[2] / "docs" / "METRICS.md"

INTRODUCTION = """\
# Metrics

Every metric has the name of Kafka's JMX bean. Prometheus gets them over HTTP
([MONITORING.md](MONITORING.md)); `mpbroker ctl metrics` prints them (`--json`, `-f`), after a crash with
`--file` for the file `public` of the runtime directory. `python -m ops.docs.metrics` makes this page.

* APIs, errors, topics and clients with quotas appear with their first count.
* **Rates**: `Count` is exact; `MeanRate` is per second since the broker began; `IntervalRate`, idle shares
  and `-rate` attributes are of the time between two samples (`--interval`; one second by default).
* **Histograms** count since the broker began. Count, Max and Mean are exact, the rest is within 12.5 % (Kafka
  samples, with more weight on the last five minutes).
* Beans of processors carry no `listener` tag: each serves all listeners of its plane.

## The beans

What is no gauge has its kind in brackets; then come attributes, and what it means.

"""

CLOSING = """
## The request log

`mpbroker ctl request-log on`, or `kafka-configs.sh --entity-type broker-loggers`, makes the broker write one
line of JSON for each request that has ended, as Kafka's `kafka.request.logger` does at DEBUG: header, request
and response without record data and secrets, who asked, and the time of every stage. Each request is then
handled the slow way, in Python.
"""


def page() -> str:
    rows = []
    for one in table():
        meaning = f"{one.named}. {one.meaning}".strip() if one.named else one.meaning
        kind = "" if one.kind == "gauge" else f" ({one.kind})"
        rows.append(f"* `{one.pattern}`{kind}: {meaning}")
    return INTRODUCTION + "\n".join(rows) + "\n" + CLOSING


if __name__ == "__main__":
    PAGE.write_text(page())
