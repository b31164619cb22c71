"""Writes ops/grafana/mpbroker.json, the dashboard: `python -m ops.docs.dashboard`.

Grafana's own JSON repeats itself; here a panel is a line with its queries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "grafana" / "mpbroker.json"
ROW_UNITS, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
TOPIC = f'{HERE},topic=~"$topic"'
GROUP = f'{HERE},consumergroup=~"$consumergroup"'
TOPICS = "kafka_server_brokertopicmetrics_"
DIR = "mpbroker_log_dir_"
RATE = "$__rate_interval"


class Panel(NamedTuple):
    """A panel: its title, Grafana's unit, its queries with their legends, its width (a row has 24)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int
    kind: str
    meaning: str


def _rate(metric: str, by: str = "", where: str = HERE) -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[{RATE}]))"


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{HERE}}}[{RATE}])))"


def panel(
    title: str,
    unit: str,
    *queries: tuple[str, str],
    width: int = 8,
    kind: str = "timeseries",
    meaning: str = "",
) -> Panel:
    return Panel(title, unit, queries, width, kind, meaning)


def stat(title: str, unit: str, query: str) -> Panel:
    return panel(title, unit, (query, ""), width=3, kind="stat")


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            stat("Ready", "short", f"min(mpbroker_ready{{{HERE}}})"),
            stat("Up", "s", f"max(mpbroker_uptime_seconds{{{HERE}}})"),
            stat("Restarts in an hour", "short", f"sum(increase(mpbroker_restarts_total{{{HERE}}}[1h]))"),
            stat(
                "Offline partitions",
                "short",
                f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{{{HERE}}})",
            ),
            stat(
                "Partitions", "short", f"sum(kafka_controller_kafkacontroller_globalpartitioncount{{{HERE}}})"
            ),
            stat("Connections", "short", f"sum(mpbroker_listener_connections{{{HERE}}})"),
            stat(
                "Disk left", "percentunit", f"min({DIR}usable_bytes{{{HERE}}} / {DIR}total_bytes{{{HERE}}})"
            ),
            stat("Damaged ranges", "short", f"sum(mpbroker_scrubber_damaged_ranges{{{HERE}}})"),
        ),
    ),
    (
        "Traffic",
        (
            panel(
                "Records in",
                "cps",
                (_rate(f"{TOPICS}messagesin_total", "topic", f'{TOPIC},topic!=""'), "{{topic}}"),
            ),
            panel(
                "Bytes in and out",
                "Bps",
                (_rate(f"{TOPICS}bytesin_total", "", f'{HERE},topic=""'), "in"),
                (_rate(f"{TOPICS}bytesout_total", "", f'{HERE},topic=""'), "out"),
            ),
            panel(
                "Requests",
                "reqps",
                (_rate("kafka_network_requestmetrics_requests_total", "request"), "{{request}}"),
            ),
            panel(
                "Failed requests",
                "reqps",
                (_rate(f"{TOPICS}failedproducerequests_total", "", f'{HERE},topic=""'), "produce"),
                (_rate(f"{TOPICS}failedfetchrequests_total", "", f'{HERE},topic=""'), "fetch"),
            ),
            panel(
                "Errors",
                "cps",
                (
                    _rate(
                        "kafka_network_requestmetrics_errors_total", "request, error", f'{HERE},error!="NONE"'
                    ),
                    "{{request}} {{error}}",
                ),
            ),
            panel(
                "Connections by listener",
                "short",
                (f"mpbroker_listener_connections{{{HERE}}}", "{{listener}}"),
            ),
        ),
    ),
    (
        "Latency",
        (
            panel(
                "Produce",
                "s",
                *tuple(
                    (
                        f"histogram_quantile({q}, sum by (le) (rate("
                        f'mpbroker_request_duration_seconds_bucket{{{HERE},request="Produce"}}[{RATE}])))',
                        f"p{q * 100:g}",
                    )
                    for q in (0.5, 0.99, 0.999)
                ),
            ),
            panel(
                "p99 by API",
                "s",
                (_quantile(0.99, "mpbroker_request_duration_seconds", "request"), "{{request}}"),
                meaning="With the time that fetches wait for records.",
            ),
            panel(
                "Where the time goes: produce",
                "percentunit",
                (
                    _rate("mpbroker_request_stage_seconds_total", "stage", f'{HERE},request="Produce"'),
                    "{{stage}}",
                ),
                meaning="Seconds that produce requests spend in each stage, per second.",
            ),
            panel(
                "Commit (fdatasync)",
                "s",
                *tuple(
                    (_quantile(q, "mpbroker_log_commit_duration_seconds"), f"p{q * 100:g}")
                    for q in (0.5, 0.99)
                ),
            ),
            panel(
                "Append",
                "s",
                *tuple(
                    (_quantile(q, "mpbroker_log_append_duration_seconds"), f"p{q * 100:g}")
                    for q in (0.5, 0.99)
                ),
            ),
            panel(
                "Batches in a round",
                "short",
                *tuple((_quantile(q, "mpbroker_log_round_batches"), f"p{q * 100:g}") for q in (0.5, 0.99)),
            ),
        ),
    ),
    (
        "Processes",
        (
            panel(
                "CPU", "percentunit", (_rate("mpbroker_process_cpu_seconds_total", "process"), "{{process}}")
            ),
            panel("Memory (PSS)", "bytes", (f"mpbroker_process_pss_bytes{{{HERE}}}", "{{process}}")),
            panel(
                "Idle",
                "percentunit",
                (f"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{{{HERE}}}", "handlers"),
                (f"kafka_network_socketserver_networkprocessoravgidle_percent{{{HERE}}}", "processors"),
            ),
            panel("Waiting in rings", "short", (f"mpbroker_ring_waiting{{{HERE}}}", "to {{process}}")),
            panel("Arenas", "bytes", (f"mpbroker_process_arena_bytes{{{HERE}}}", "{{process}}")),
            panel(
                "Time since it moved",
                "s",
                (f"mpbroker_process_heartbeat_age_seconds{{{HERE}}}", "{{process}}"),
            ),
        ),
    ),
    (
        "Consumers",
        (
            panel(
                "Lag by group",
                "short",
                (
                    f"sum by (consumergroup, topic) (kafka_consumergroup_lag{{{GROUP}}})",
                    "{{consumergroup}} {{topic}}",
                ),
                width=12,
            ),
            panel(
                "Read by group",
                "cps",
                (
                    "sum by (consumergroup, topic) "
                    f"(rate(kafka_consumergroup_current_offset{{{GROUP}}}[{RATE}]))",
                    "{{consumergroup}} {{topic}}",
                ),
                width=12,
            ),
            panel(
                "Members", "short", (f"kafka_consumergroup_members{{{GROUP}}}", "{{consumergroup}}"), width=12
            ),
            panel(
                "Most lag of a partition",
                "short",
                (
                    f"topk(10, kafka_consumergroup_lag{{{GROUP}}})",
                    "{{consumergroup}} {{topic}}-{{partition}}",
                ),
                width=12,
            ),
            panel(
                "Groups of the consumer protocol",
                "short",
                (f"kafka_server_group_coordinator_metrics_consumer_group_count{{{HERE}}}", "{{state}}"),
                width=12,
            ),
            panel(
                "Their rebalances",
                "ops",
                (
                    "rate(kafka_server_group_coordinator_metrics_consumer_group_rebalance_count"
                    f"{{{HERE}}}[{RATE}])",
                    "rebalances",
                ),
                width=12,
            ),
        ),
    ),
    (
        "Tables",
        (
            panel(
                "Lag of tables",
                "short",
                (
                    "sum by (consumergroup) (kafka_consumergroup_lag"
                    f'{{{HERE},consumergroup=~"mpbroker[.]table[.].*"}})',
                    "{{consumergroup}}",
                ),
            ),
            panel(
                "Time since the last commit",
                "s",
                (f"mpbroker_table_commit_age_seconds{{{HERE}}}", "{{table}}"),
            ),
            panel(
                "Rows with an error",
                "cps",
                (f"rate(mpbroker_table_error_rows{{{HERE}}}[{RATE}])", "{{table}}"),
                (f"mpbroker_table_failing{{{HERE}}} > 0", "{{table}} fails"),
            ),
            panel("Rows of tables", "short", (f"mpbroker_table_rows{{{HERE}}}", "{{table}}")),
            panel("Files of tables", "short", (f"mpbroker_table_files{{{HERE}}}", "{{table}}")),
            panel("Bytes of tables", "bytes", (f"mpbroker_table_bytes{{{HERE}}}", "{{table}}")),
        ),
    ),
    (
        "Storage",
        (
            panel("Log directories", "bytes", (f"mpbroker_log_dir_size_bytes{{{HERE}}}", "{{log_dir}}")),
            panel(
                "Largest topics",
                "bytes",
                (f"topk(10, sum by (topic) (kafka_log_log_size{{{TOPIC}}}))", "{{topic}}"),
            ),
            panel("Recovery left", "bytes", (f"mpbroker_recovery_bytes_left{{{HERE}}}", "{{log_dir}}")),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            _placed({"type": "row", "title": title, "collapsed": False, "panels": []}, panels, 0, y, 24, 1)
        )
        y, x = y + 1, 0
        height = HEIGHT if row[0].kind == "timeseries" else HEIGHT // 2
        for one in row:
            if x + one.width > ROW_UNITS:
                x, y = 0, y + height
            panels.append(_placed(_panel(one), panels, x, y, one.width, height))
            x += one.width
        y += height
    return {
        "uid": "mpbroker",
        "title": "mpbroker",
        "tags": ["mpbroker", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _placed(
    panel: dict[str, Any], before: list[dict[str, Any]], x: int, y: int, width: int, height: int
) -> dict[str, Any]:
    return {"id": len(before) + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}, **panel}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
        for number, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
    }


def _variables() -> list[dict[str, Any]]:
    def query(name: str, text: str) -> dict[str, Any]:
        return {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": text, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "sort": 1,
        }

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        query("instance", "label_values(mpbroker_build_info, instance)"),
        query("topic", f"label_values(kafka_topic_partitions{{{HERE}}}, topic)"),
        query("consumergroup", f"label_values(kafka_consumergroup_lag{{{HERE}}}, consumergroup)"),
    ]


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
