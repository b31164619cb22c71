"""`mpbroker log-dirs`: log directories of brokers and their partitions (Kafka: LogDirsCommand)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

import typer

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import COMPLETE_TOPICS, ClusterAddress, Json, option
from mpbroker.cli.text.numbers import INT, SECONDS
from mpbroker.cli.text.output import print_json, print_table
from mpbroker.cli.text.progress import progress_bar
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed
from mpbroker.client.log_dirs import described
from mpbroker.client.topics import Topic, by_leader, partitions_of
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code

POLL_S: Final = 0.1


def log_dirs(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    broker: Annotated[
        list[int] | None, option("--broker", "ID", "Only of this one; repeatable.", callback=INT)
    ] = None,
    to: Annotated[
        str | None, option("--to", "DIR", "With move TOPIC [PARTITION]...: where they are to be.")
    ] = None,
    wait: Annotated[
        float | None,
        option("--wait", "[SECONDS]", "With --to: until they are there; 60.", min=0, callback=SECONDS),
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print log directories and sizes of partitions, or move some.

    Default: all topics. A future partition is being moved there. mpbroker log-dirs move orders 0 2 --to DIR
    moves two partitions while they are served; without numbers, all of the topic.
    """
    if to is not None:
        _move(where, topics or [], broker or [], to, wait, as_json=json)
    elif wait is not None:
        raise CliError("--wait is for log-dirs move, which needs --to DIR", USAGE_ERROR)
    else:
        _show(where, topics or [], broker or [], as_json=json)


def _show(where: ClusterAddress, topics: Sequence[str], brokers: Sequence[int], *, as_json: bool) -> None:
    """Print log directories with their partitions. No topics or no brokers means all of them."""
    with open_admin(where) as client:
        wanted = None
        if topics:
            one = m.DescribeLogDirsRequest.DescribableLogDirTopic
            found = [client.topic(name) for name in topics]
            wanted = [one(topic.name, partitions_of(topic)) for topic in found]
        there = client.broker_ids()
        if strange := sorted(set(brokers) - set(there)):
            known = ", ".join(map(str, there))
            raise CliError(f"--broker {strange[0]} does not exist; there is {known}", USAGE_ERROR)
        documents = [
            _document(broker, result)
            for broker in sorted(brokers or there)
            for result in described(client.cluster, broker, wanted)
        ]
    if as_json:
        print_json(documents)
        return
    for index, document in enumerate(documents):
        if index:
            print()
        rows = document["partitions"]
        columns = ("TOPIC", "PARTITION", "SIZE", "OFFSET-LAG", "FUTURE")
        print_table(columns, [list(row.values()) for row in rows], title=title(document))


def _move(
    where: ClusterAddress,
    words: Sequence[str],
    brokers: Sequence[int],
    to: str,
    wait_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Move the partitions that the command's arguments `words` name. Raises CliError, ApiFailed."""
    if len(words) < 2 or words[0] != "move" or brokers or not all(map(str.isdecimal, words[2:])):
        raise CliError("write mpbroker log-dirs move TOPIC [PARTITION]... --to DIR", USAGE_ERROR)
    with open_admin(where) as client:
        topic = client.topic(words[1])
        numbers = partitions_of(topic, list(map(int, words[2:])) or None)
        by_broker = by_leader(topic, dict.fromkeys(numbers))
        to = _resolved(client, by_broker, to)
        for broker, mine in by_broker.items():
            _begin(client, broker, topic, list(mine), to)
        rows = _follow(client, topic, numbers, to, wait_s)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        name = f"{topic.name}-{row['partition']}"
        print(
            f"moved {name} to {to}"
            if row["is_there"]
            else f"{name} moves to {to}; it lacks {_lag(row)}"
            f". mpbroker log-dirs {topic.name} shows how far it is"
        )


def _resolved(client: Admin, brokers: Iterable[int], to: str) -> str:
    """Return the one log directory that ends in the relative path `to`; if there is none, return `to`."""
    wanted = PurePosixPath(to)
    if wanted.is_absolute():
        return to
    there = {
        PurePosixPath(one.log_dir) for broker in brokers for one in described(client.cluster, broker, [])
    }
    meant = [one for one in there if one.parts[-len(wanted.parts) :] == wanted.parts]
    return str(meant[0]) if len(meant) == 1 else to


def _begin(client: Admin, broker: int, topic: Topic, partitions: list[int], to: str) -> None:
    """Ask a broker to move partitions to its directory `to`. Raises ApiFailed, CliError."""
    named = m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(topic.name, partitions)
    request = m.AlterReplicaLogDirsRequest([m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(to, [named])])
    response: m.AlterReplicaLogDirsResponse = client.cluster.ask(broker, request)
    for one in (part for result in response.results for part in result.partitions):
        if one.error_code == ErrorCode.LOG_DIR_NOT_FOUND:
            there = ", ".join(result.log_dir for result in described(client.cluster, broker, []))
            raise CliError(
                f"--to {to}: broker {broker} has no such log directory; there is {there}", USAGE_ERROR
            )
        if one.error_code:
            raise ApiFailed(f"move of {topic.name}-{one.partition_index} to {to}", one.error_code)


def _follow(
    client: Admin, topic: Topic, partitions: list[int], to: str, wait_s: float | None
) -> list[dict[str, Any]]:
    """Return a row for each move. Unless `wait_s` is None, wait until all have ended. Raises CliError."""
    deadline = time.monotonic() + (wait_s or 0)
    with progress_bar(0) as update:
        while True:
            rows = _on_the_way(client, topic, partitions, to)
            late = [row for row in rows if not row["is_there"]]
            if not late or wait_s is None:
                return rows
            if time.monotonic() >= deadline:
                raise CliError(
                    f"{topic.name}-{late[0]['partition']} is not in {to} after {wait_s:g} s: it lacks "
                    f"{_lag(late[0])}; the move continues"
                )
            total, size = sum(row["size"] for row in rows), sum(row["copied"] for row in rows)
            update(total=total, completed=size, description=f"{len(late)} of {len(rows)} move to {to}")
            time.sleep(POLL_S)


def _lag(row: dict[str, Any]) -> str:
    """Return a future replica's lag as text. A lag of -1 means that the log worker does not know it yet."""
    return f"{row['offset_lag']} offset(s)" if row["offset_lag"] >= 0 else "some offsets"


def _on_the_way(client: Admin, topic: Topic, partitions: list[int], to: str) -> list[dict[str, Any]]:
    """Return a row with the progress of each move to `to`. Raises CliError if a move has failed."""
    wanted = [m.DescribeLogDirsRequest.DescribableLogDirTopic(topic.name, partitions)]
    found: dict[int, dict[str, Any]] = {
        number: {"partition": number, "is_there": False, "offset_lag": 0, "size": 0, "copied": -1}
        for number in partitions
    }
    homes: dict[int, str] = {}
    for broker in by_leader(topic, dict.fromkeys(partitions)):
        for result in described(client.cluster, broker, wanted):
            for part in (part for one in result.topics for part in one.partitions):
                row = found[part.partition_index]
                if part.is_future_key:
                    row.update(offset_lag=part.offset_lag, copied=part.partition_size)
                    continue
                homes[part.partition_index] = result.log_dir
                row["size"] = part.partition_size
                row["is_there"] = result.log_dir == to
    for number, row in found.items():
        if row["is_there"]:
            row["copied"] = row["size"]
        elif row["copied"] < 0:
            raise CliError(
                f"{topic.name}-{number} stays in {homes.get(number, 'an offline directory')}: its move "
                f"to {to} has ended. The broker's log has the reason"
            )
    return list(found.values())


def title(document: dict[str, Any]) -> str:
    """Return the heading of a directory: broker, path, size, free space and error."""
    count, size = len(document["partitions"]), sum(row["size"] for row in document["partitions"])
    parts = [f"broker {document['broker']}  {document['log_dir']}"]
    parts.append(f"{count} partition(s) with {size:,} bytes")
    if document["usable_bytes"] is not None:
        parts.append(f"{document['usable_bytes']:,} of {document['total_bytes']:,} bytes are free")
    if document["error"] is not None:
        parts.append(f"failed: {document['error']}")
    return ", ".join(parts)


def _document(broker: int, result: m.DescribeLogDirsResponse.DescribeLogDirsResult) -> dict[str, Any]:
    return {
        "broker": broker,
        "log_dir": result.log_dir,
        "error": error_code(result.error_code).name if result.error_code else None,
        "total_bytes": result.total_bytes if result.total_bytes >= 0 else None,
        "usable_bytes": result.usable_bytes if result.usable_bytes >= 0 else None,
        "partitions": [
            {
                "topic": topic.name,
                "partition": part.partition_index,
                "size": part.partition_size,
                "offset_lag": part.offset_lag,
                "is_future": part.is_future_key,
            }
            for topic in sorted(result.topics, key=lambda topic: topic.name)
            for part in sorted(topic.partitions, key=lambda part: part.partition_index)
        ],
    }
