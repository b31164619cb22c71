"""`mpbroker txn`: lists and describes transactions, and finds hanging ones.

(Kafka: TransactionsCommand, KIP-664)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import of_flag
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.output import print_groups, print_json, print_rows
from mpbroker.client.admin import Admin, only
from mpbroker.client.cluster import CoordinatorType
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.times import format_time, parse_duration
from mpbroker.client.topics import Topic, by_leader, led, partitions_of
from mpbroker.protocol import messages as m

# A coordinator may be that late: it looks for what is over its time only now and then. As in Kafka's tool.
PATIENCE_WITH_COORDINATORS_MS = 5 * 60_000
NO_OFFSET = -1
ONGOING = "Ongoing"

Producer = m.DescribeProducersResponse.ProducerState
State = m.DescribeTransactionsResponse.TransactionState


def filters(
    states: Sequence[str], producer_ids: Sequence[int], duration: str | None, pattern: str | None
) -> m.ListTransactionsRequest:
    """Return the request that lists what the flags ask for. Raises CliError."""
    longer_ms = -1 if duration is None else of_flag("--longer-than", duration, parse_duration)
    return m.ListTransactionsRequest(list(states), list(producer_ids), longer_ms, pattern)


class Listed(NamedTuple):
    """A transactional id in the list of its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


def list_transactions(client: Admin, request: m.ListTransactionsRequest) -> list[Listed]:
    """Return the transactional ids of all coordinators by name. Raises ApiFailed."""
    listed = [
        Listed(one.transactional_id, broker, one.producer_id, one.transaction_state)
        for broker in client.broker_ids()
        for one in client.patiently(partial(_list, client, broker, request))
    ]
    return sorted(listed)


def _list(
    client: Admin, node: int, request: m.ListTransactionsRequest
) -> list[m.ListTransactionsResponse.TransactionState]:
    response: m.ListTransactionsResponse = client.cluster.ask(node, request)
    if response.error_code:
        raise ApiFailed(f"transactions of broker {node}", response.error_code)
    return response.transaction_states


def show_list(where: ClusterAddress, request: m.ListTransactionsRequest, *, as_json: bool) -> None:
    """Print the transactional ids of all coordinators."""
    with open_admin(where) as client:
        rows = [one._asdict() for one in list_transactions(client, request)]
    print_rows(rows, as_json=as_json, nothing="no transactions")


def describe_transaction(client: Admin, name: str) -> tuple[int, State]:
    """Return a transactional id's coordinator and its state there. Raises ApiFailed."""
    return client.patiently(partial(_describe, client, name))


def _describe(client: Admin, name: str) -> tuple[int, State]:
    node = client.cluster.coordinator(CoordinatorType.TRANSACTION, name)
    response: m.DescribeTransactionsResponse = client.cluster.ask(node, m.DescribeTransactionsRequest([name]))
    state = only(response.transaction_states, f"transactional id {name}")
    if state.error_code:
        raise ApiFailed(f"transactional id {name}", state.error_code)
    return node, state


def describe(where: ClusterAddress, names: Sequence[str], *, as_json: bool) -> None:
    """Print the states of transactional ids, of all if none is named.

    One that is not there hides no other.
    """
    failed: list[ClientError] = []
    documents = []
    now_ms = time.time_ns() // 1_000_000
    with open_admin(where) as client:
        everything = m.ListTransactionsRequest()
        for name in names or [one.transactional_id for one in list_transactions(client, everything)]:
            try:
                documents.append(document(*describe_transaction(client, name), now_ms))
            except ApiFailed as error:
                failed.append(error)
    if as_json:
        print_json(documents)
    elif documents:
        print_groups((one.pop("transactional_id"), _for_people(one)) for one in documents)
    elif not failed:
        print("no transactions")
    raise_all(failed)


def document(coordinator: int, state: State, now_ms: int) -> dict[str, Any]:
    """Return what --json prints of a transactional id; times that it has not are None."""
    began_ms = state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None
    return {
        "transactional_id": state.transactional_id,
        "coordinator": coordinator,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "start_time_ms": began_ms,
        "duration_ms": None if began_ms is None else max(now_ms - began_ms, 0),
        "partitions": sorted((topic.topic, number) for topic in state.topics for number in topic.partitions),
    }


def _for_people(one: dict[str, Any]) -> dict[str, Any]:
    began_ms = one.pop("start_time_ms")
    places = [f"{topic}-{number}" for topic, number in one["partitions"]]
    return {
        **one,
        "start_time": None if began_ms is None else format_time(began_ms),
        "partitions": places or None,
    }


def describe_producers(where: ClusterAddress, name: str, partitions: Sequence[int], *, as_json: bool) -> None:
    """Print the producers that partitions of a topic remember. Raises CliError, ApiFailed.

    A partition without a leader hides those of no other.
    """
    failed: list[ClientError] = []
    with open_admin(where) as client:
        topic = client.topic(name)
        asked = led(topic, partitions or partitions_of(topic), failed)
        rows = [
            _row_of_producer(name, number, producer)
            for number, found in sorted(producers(client, topic, asked).items())
            for producer in found
        ]
    if not as_json:
        rows = [{**row, "last_timestamp": format_time(row["last_timestamp"])} for row in rows]
        # Each row has the topic of the command.
        rows = [{key: value for key, value in row.items() if key != "topic"} for row in rows]
    print_rows(rows, as_json=as_json, nothing="no producers")
    raise_all(failed)


def producers(client: Admin, topic: Topic, partitions: Sequence[int]) -> dict[int, list[Producer]]:
    """Return the producers of partitions. Raises CliError, ApiFailed."""
    found: dict[int, list[Producer]] = {}
    for leader, mine in by_leader(topic, dict.fromkeys(partitions, None)).items():
        one = m.DescribeProducersRequest.TopicRequest(topic.name, list(mine))
        response: m.DescribeProducersResponse = client.cluster.ask(leader, m.DescribeProducersRequest([one]))
        for part in (part for answer in response.topics for part in answer.partitions):
            if part.error_code:
                what = f"producers of {topic.name}-{part.partition_index}"
                raise ApiFailed(what, part.error_code, part.error_message)
            found[part.partition_index] = sorted(part.active_producers, key=lambda state: state.producer_id)
    return found


def _row_of_producer(topic: str, partition: int, producer: Producer) -> dict[str, Any]:
    start = producer.current_txn_start_offset
    return {
        "topic": topic,
        "partition": partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "start_offset": start if start != NO_OFFSET else None,
    }


def find_hanging(where: ClusterAddress, names: Sequence[str], timeout: str, *, as_json: bool) -> None:
    """Print open transactions that are older than any may be and that no coordinator knows."""
    longest_ms = of_flag("--max-transaction-timeout", timeout, parse_duration)
    limit_ms = longest_ms + PATIENCE_WITH_COORDINATORS_MS
    before_ms = time.time_ns() // 1_000_000 - limit_ms
    failed: list[ClientError] = []
    with open_admin(where) as client:
        topics = [client.topic(name) for name in names] or client.topics()
        asked = {one.name: led(one, partitions_of(one), failed) for one in topics}
        old = [
            _row_of_producer(topic.name, number, producer)
            for topic in topics
            for number, found in sorted(producers(client, topic, asked[topic.name]).items())
            for producer in found
            if producer.current_txn_start_offset >= 0 and producer.last_timestamp < before_ms
        ]
        rows = hanging(old, _open_partitions(client, {row["producer_id"] for row in old})) if old else []
    for row in rows:
        row.pop("last_sequence")
        if not as_json:
            row["last_timestamp"] = format_time(row["last_timestamp"])
    print_rows(rows, as_json=as_json, nothing="no hanging transactions")
    raise_all(failed)


def hanging(old: Iterable[dict[str, Any]], ongoing: set[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """Return the rows about producers whose coordinator has no open transaction in that partition."""
    return [row for row in old if (row["producer_id"], row["topic"], row["partition"]) not in ongoing]


def _open_partitions(client: Admin, producer_ids: set[int]) -> set[tuple[int, str, int]]:
    """Return (producer id, topic, partition) of what coordinators have open."""
    listed = list_transactions(client, m.ListTransactionsRequest(producer_id_filters=sorted(producer_ids)))
    found = set()
    for one in listed:
        _, state = describe_transaction(client, one.transactional_id)
        found |= {
            (state.producer_id, topic.topic, number) for topic in state.topics for number in topic.partitions
        }
    return found
