"""Writes docs/METRICS.md from what the code registers: `python -m ops.docs.metrics`."""

from __future__ import annotations

from pathlib import Path

from mpbroker.metrics.catalogue import table

PAGE = Path(__file__).parents[2] / "docs" / "METRICS.md"

INTRODUCTION = """\
# Metrics

Every metric has the name of Kafka's JMX bean, so that dashboards and rules that know Kafka's names need no
translation. Prometheus gets them over HTTP ([MONITORING.md](MONITORING.md)); JMX itself is not served.
`mpbroker ctl metrics` prints them (`--json` for programs, `--filter` for some of them). It reads the broker's
shared memory and asks no process: it works when the broker is jammed, and after a crash with
`--file` for as long as the file `public` of the runtime directory is there. This page is made from the code
by `python -m ops.docs.metrics`.

* **Counting costs nothing but an addition in memory**: each process writes its own page, anybody reads. What
  was never touched takes no memory, and has no bean: APIs, errors, topics and clients with quotas appear with
  their first count (Kafka registers every API at start).
* **Rates**: a process keeps counts, never rates. `Count` is exact; `MeanRate` is per second since the broker
  began; `IntervalRate`, idle shares and `-rate` attributes are of the time between two looks (`--interval`,
  one second if not given). One-, five- and fifteen-minute rates belong to whoever keeps a history, such as
  [Prometheus](MONITORING.md), which gets all of these from `/metrics`.
* **Histograms** count since the broker began. Count, Max and Mean are exact, the rest is within 12.5 % (four
  buckets per power of two); Kafka samples, with more weight on the last five minutes.
* **A process that dies takes no count with it**: its successor goes on where it stopped.
* Beans of processors carry no `listener` tag: each processor serves all listeners of its plane. Only what
  acceptors count is told per listener.

| bean, attribute | kind | what it says |
|---|---|---|
"""

CLOSING = """
Alerts worth having: `NetworkProcessorAvgIdlePercent` and `RequestHandlerAvgIdlePercent` below 0.3,
`RequestQueueSize` that stays near `queued.max.requests`, an `AcceptorBlockedPercent` whose rate is not 0,
`FailedProduceRequestsPerSec`, an `OfflineLogDirectoryCount` above 0, too few `usable-bytes` of a log
directory (`mpbroker:type=LogDir`), and of `mpbroker:type=Broker` `lost-pages-total` above 0 (the tmpfs is
full: some counts are lost) and `unmeasured-requests-total` above 0 (more clients with quotas than can be
measured).

## The request log

`mpbroker ctl request-log on` makes the broker write one line of JSON for each request that has ended, as
Kafka's `kafka.request.logger` does at DEBUG: header, request and response without record data, who asked, and
the time of every stage. `kafka-configs.sh --entity-type broker-loggers` sets that logger here as well. It is
off at start and costs nothing then. While it is on each request is handled the
slow way, in Python; secrets are masked.
"""


def page() -> str:
    rows = []
    for one in table():
        pattern = one.pattern.replace("|", "\\|")
        named = one.named.replace("|", "\\|")
        said = f"{named}. {one.meaning}".strip() if named else one.meaning
        rows.append(f"| `{pattern}` | {one.kind} | {said} |")
    return INTRODUCTION + "\n".join(rows) + "\n" + CLOSING


if __name__ == "__main__":
    PAGE.write_text(page())
