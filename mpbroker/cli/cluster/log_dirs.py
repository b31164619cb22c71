"""`mpbroker log-dirs`: log directories of brokers and what is in them (Kafka: LogDirsCommand)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpbroker.cli.cluster.client import Client
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.text.output import print_json, print_table
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code


def show(where: ClusterAddress, topics: Sequence[str], brokers: Sequence[int], *, as_json: bool) -> None:
    """Print directories with their partitions, of these topics and brokers or of all."""
    with Client(where) as client:
        wanted = None
        if topics:
            one = m.DescribeLogDirsRequest.DescribableLogDirTopic
            found = [client.topic(name) for name in topics]
            wanted = [one(topic.name, [part.index for part in topic.partitions]) for topic in found]
        there = [broker.node_id for broker in client.cluster.refresh(m.MetadataRequest(topics=[])).brokers]
        if strange := sorted(set(brokers) - set(there)):
            known = ", ".join(map(str, sorted(there)))
            raise CliError(f"--broker {strange[0]}: there is no such broker; there is {known}", USAGE_ERROR)
        documents = [
            _document(broker, result)
            for broker in sorted(brokers or there)
            for result in _described(client, broker, wanted)
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


def title(document: dict[str, Any]) -> str:
    """Return the line above a directory's partitions."""
    count, size = len(document["partitions"]), sum(row["size"] for row in document["partitions"])
    parts = [f"broker {document['broker']}  {document['log_dir']}"]
    parts.append(f"{count} partition(s) with {size:,} bytes")
    if document["usable_bytes"] is not None:
        parts.append(f"{document['usable_bytes']:,} of {document['total_bytes']:,} bytes are free")
    if document["error"] is not None:
        parts.append(f"failed: {document['error']}")
    return ", ".join(parts)


def _described(
    client: Client, broker: int, wanted: list[m.DescribeLogDirsRequest.DescribableLogDirTopic] | None
) -> list[m.DescribeLogDirsResponse.DescribeLogDirsResult]:
    response: m.DescribeLogDirsResponse = client.cluster.ask(broker, m.DescribeLogDirsRequest(wanted))
    if response.error_code:
        raise ApiFailed(f"log directories of broker {broker}", response.error_code)
    if not response.results:
        # Brokers before version 3 have no other way to refuse.
        raise ApiFailed(f"log directories of broker {broker}", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return sorted(response.results, key=lambda result: result.log_dir)


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
