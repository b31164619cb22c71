"""`mpbroker top --once`: the rows of one moment, as tables or as one JSON document, for pipes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from mpbroker.cli.text.output import print_json, print_table
from mpbroker.cli.top.columns import DRAWN, GROUPS, PARTITIONS, Column, View, arranged
from mpbroker.cli.top.text import duration, text_of
from mpbroker.cli.top.watch import BrokerFlags, GroupWatch, Watch
from mpbroker.observe.model import Model, Row
from mpbroker.observe.samples import Groups, Health
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import OWN_TOPICS


def seen_once(wanted: BrokerFlags, interval_s: float, *, with_groups: bool) -> Model:
    """Sample a running broker twice, for rates, or a stopped one once. Raises CliError, ClientConfigError."""
    watch, model = Watch(wanted), Model()
    first = watch.first()
    model.add(first)
    if first.broker.pid is not None and interval_s > 0:
        time.sleep(interval_s)
        model.add(watch.sample())
    if with_groups:
        model.add_groups(_groups(watch, wanted, model))
    return model


def _groups(watch: Watch, wanted: BrokerFlags, model: Model) -> Groups:
    at_rest = watch.groups_at_rest()
    if at_rest is not None:
        return at_rest
    assert model.sample is not None
    groups = GroupWatch(wanted)
    try:
        return groups.groups(model.sample.broker)
    finally:
        groups.close()


def document(model: Model, views: Iterable[View]) -> dict[str, Any]:
    """Return the broker and the views as one JSON object. Unknown rates and latencies are null."""
    assert model.sample is not None
    broker = model.sample.broker
    found: dict[str, Any] = {
        "broker": {
            "health": broker.health.name.lower(),
            "note": broker.note or None,
            "pid": broker.pid,
            "node_id": broker.node_id,
            "version": broker.version or None,
            "up_s": broker.up_s,
            "listeners": broker.listeners,
            "log_dirs": broker.log_dirs,
            "connections": broker.connections,
            "offline_partitions": broker.offline_partitions,
        },
        "rates": model.summary._asdict(),
    }
    for view in views:
        drawn = {column.key for column in view.columns if column.kind in DRAWN or not column.title}
        found[view.key] = [
            {key: value for key, value in row.items() if key not in drawn} for row in _sorted(model, view)
        ]
    if GROUPS.key in found and model.groups is not None and model.groups.problem:
        found["groups_problem"] = model.groups.problem
    return found


def show(model: Model, views: Iterable[View], *, as_json: bool) -> None:
    """Print the broker and the views, as tables or as one JSON object."""
    views = tuple(views)
    if as_json:
        print_json(document(model, views))
        return
    print(_headline(model))
    for view in views:
        rows = _sorted(model, view)
        shown = [row for row in rows if view is not PARTITIONS or not _is_empty_of_broker(row)]
        print()
        print_table(
            [column.title for column in _columns(view)],
            [[_cell(row, column) for column in _columns(view)] for row in shown],
            title=view.title,
        )
        if len(shown) < len(rows):
            print(f"and {len(rows) - len(shown)} of the broker's own topics, without records")
    if GROUPS in views and model.groups is not None and model.groups.problem:
        print(printable(f"groups are not known: {model.groups.problem}"))


def _is_empty_of_broker(row: Row) -> bool:
    """Return whether the row is an empty partition of one of the broker's own topics."""
    return row["topic"] in OWN_TOPICS and row["log_start_offset"] == row["log_end_offset"]


def _sorted(model: Model, view: View) -> list[Row]:
    return arranged(view.rows(model), view, "", view.sorted_by, is_reversed=False)


def _columns(view: View) -> list[Column]:
    return [column for column in view.columns if column.kind not in DRAWN and column.title]


def _cell(row: Row, column: Column) -> str:
    return text_of(row[column.key], column.kind)


def _headline(model: Model) -> str:
    assert model.sample is not None
    broker, seen = model.sample.broker, model.summary
    parts = [f"mpbroker: {broker.health.value}"]
    parts += [f"node {broker.node_id}"] if broker.node_id is not None else []
    parts += [f"up {duration(broker.up_s)}"] if broker.up_s is not None else []
    parts += [", ".join(broker.listeners or broker.log_dirs)]
    if broker.health in (Health.RUNNING, Health.NOT_READY) and seen.requests_per_s is not None:
        parts.append(f"{seen.requests_per_s:.0f} requests/s, {seen.messages_in_per_s or 0:.0f} records/s in")
    return "\n".join(map(printable, filter(None, (", ".join(filter(None, parts)), broker.note))))
