"""`mpbroker txn`: lists, describes and aborts transactions, and finds hanging transactions.

(Kafka: TransactionsCommand, KIP-664)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import COMPLETE_TOPICS, ClusterAddress, Json, TopicName, Yes, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.numbers import INT, LONG, PARTITION, SHORT
from mpbroker.cli.text.output import print_groups, print_json, print_rows, say
from mpbroker.client.admin import Admin, only
from mpbroker.client.cluster import CoordinatorType
from mpbroker.client.consumer import PATIENCE_MS
from mpbroker.client.errors import ApiFailed, ClientError, raise_all, without_leader
from mpbroker.client.times import format_time, parse_duration
from mpbroker.client.topics import Topic, by_leader, led, partitions_of
from mpbroker.client.transactions import Transactions
from mpbroker.protocol import messages as m

txn_app = App(no_args_is_help=True)
# A coordinator may be that late: it checks for expired transactions only now and then. As in Kafka's tool.
PATIENCE_WITH_COORDINATORS_MS = 5 * 60_000
NO_OFFSET = -1
ONGOING = "Ongoing"

Producer = m.DescribeProducersResponse.ProducerState
State = m.DescribeTransactionsResponse.TransactionState
Partitions = Annotated[
    list[int] | None, option("--partition -p", "N", "Only this one; repeatable.", callback=PARTITION)
]


class Listed(NamedTuple):
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Hanging(NamedTuple):
    """The flags that name a hanging transaction in a partition."""

    topic: str | None
    partition: int | None
    start_offset: int | None
    producer_id: int | None
    producer_epoch: int | None
    coordinator_epoch: int | None


@txn_app.command("list")
def txn_list(
    state: Annotated[
        list[str] | None, option("--state", "STATE", "Only Ongoing, CompleteCommit, Empty …; repeatable.")
    ] = None,
    producer_id: Annotated[
        list[int] | None, option("--producer-id", "N", "Only of this producer; repeatable.", callback=LONG)
    ] = None,
    duration: Annotated[
        str | None, option("--longer-than", "DURATION", "Only those that are open for longer: 15m, PT1H.")
    ] = None,
    pattern: Annotated[
        str | None, option("--transactional-id-pattern", "RE", "Only ids that match it as a whole.")
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """List transactional ids and their states."""
    longer_ms = -1 if duration is None else of_flag("--longer-than", duration, parse_duration)
    request = m.ListTransactionsRequest(state or [], producer_id or [], longer_ms, pattern)
    with open_admin(where) as client:
        rows = [one._asdict() for one in list_transactions(client, request)]
    print_rows(rows, as_json=json, nothing="no transactions")


@txn_app.command("describe")
def txn_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="TRANSACTIONAL-ID...", hidden=True)] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Producer, state and partitions of transactional ids.

    Default: of all.
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
    if json:
        print_json(documents)
    elif documents:
        print_groups((one.pop("transactional_id"), _for_people(one)) for one in documents)
    elif not failed:
        print("no transactions")
    raise_all(failed)


@txn_app.command("describe-producers")
def txn_describe_producers(
    topic: TopicName, partition: Partitions = None, *, where: ClusterAddress, json: Json = False
) -> None:
    """The producers that partitions remember."""
    failed: list[ClientError] = []
    with open_admin(where) as client:
        found = client.topic(topic)
        asked = led(found, partition or partitions_of(found), failed)
        rows = [
            _row_of_producer(topic, number, one)
            for number, there in sorted(producers(client, found, asked).items())
            for one in there
        ]
    if not json:
        rows = [{**row, "last_timestamp": format_time(row["last_timestamp"])} for row in rows]
        # Each row has the topic of the command.
        rows = [{key: value for key, value in row.items() if key != "topic"} for row in rows]
    print_rows(rows, as_json=json, nothing="no producers")
    raise_all(failed)


@txn_app.command("find-hanging")
def txn_find_hanging(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    timeout: Annotated[
        str, option("--max-transaction-timeout", "DURATION", "transaction.max.timeout.ms of the broker.")
    ] = "15m",
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Find transactions that no coordinator will end.

    Readers of committed records wait for them for ever. Default: in all topics.
    """
    longest_ms = of_flag("--max-transaction-timeout", timeout, parse_duration)
    limit_ms = longest_ms + PATIENCE_WITH_COORDINATORS_MS
    before_ms = time.time_ns() // 1_000_000 - limit_ms
    failed: list[ClientError] = []
    with open_admin(where) as client:
        found = [client.topic(name) for name in topics or ()] or client.topics()
        asked = {one.name: led(one, partitions_of(one), failed) for one in found}
        old = [
            _row_of_producer(topic.name, number, producer)
            for topic in found
            for number, there in sorted(producers(client, topic, asked[topic.name]).items())
            for producer in there
            if producer.current_txn_start_offset >= 0 and producer.last_timestamp < before_ms
        ]
        rows = hanging(old, _open_partitions(client, {row["producer_id"] for row in old})) if old else []
    for row in rows:
        row.pop("last_sequence")
        if not json:
            row["last_timestamp"] = format_time(row["last_timestamp"])
    print_rows(rows, as_json=json, nothing="no hanging transactions")
    raise_all(failed)


@txn_app.command("abort")
def txn_abort(
    transactional_id: Annotated[
        str | None,
        option("--transactional-id", "ID", "The open transaction of this id; fences its producer."),
    ] = None,
    topic: Annotated[
        str | None, option("--topic", "NAME", "A hanging one, in a partition of this topic.")
    ] = None,
    partition: Annotated[int | None, option("--partition -p", "N", "Which one.", callback=PARTITION)] = None,
    start_offset: Annotated[
        int | None, option("--start-offset", "N", "The one that begins there …", callback=LONG)
    ] = None,
    producer_id: Annotated[
        int | None, option("--producer-id", "N", "… or the one of this producer;", callback=LONG)
    ] = None,
    producer_epoch: Annotated[
        int | None, option("--producer-epoch", "N", "with it: default, as it is there;", callback=SHORT)
    ] = None,
    coordinator_epoch: Annotated[
        int | None, option("--coordinator-epoch", "N", "likewise.", callback=INT)
    ] = None,
    yes: Yes = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Abort an open transaction, or a hanging one.

    To end a hanging one, a marker is written into its partition alone; see find-hanging, describe-producers.
    """
    hanging = Hanging(topic, partition, start_offset, producer_id, producer_epoch, coordinator_epoch)
    _check(transactional_id, hanging)
    with open_admin(where) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, is_sure=yes)
            text = f"aborted the transaction of {transactional_id}, its producer is fenced"
            say(text, {"transactional_id": transactional_id, "aborted": True}, as_json=json)
            return
        assert hanging.topic is not None
        assert hanging.partition is not None
        found = client.topic(hanging.topic)
        producer = _producer(client, found, hanging)
        what = f"the transaction of producer {producer.producer_id} in {found.name}-{hanging.partition}"
        confirm(f"abort {what}?", is_sure=yes)
        client.cluster.patiently(
            partial(_write_marker, client, found.name, hanging.partition, producer), timeout_ms=PATIENCE_MS
        )
    document = {
        "topic": found.name,
        "partition": hanging.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "aborted": True,
    }
    say(f"aborted {what}", document, as_json=json)


def list_transactions(client: Admin, request: m.ListTransactionsRequest) -> list[Listed]:
    """Return the transactional ids of all coordinators, sorted by name. Raises ApiFailed."""
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


def describe_transaction(client: Admin, name: str) -> tuple[int, State]:
    """Return the broker id of a transactional id's coordinator, and the id's state. Raises ApiFailed."""
    return client.patiently(partial(_describe, client, name))


def _describe(client: Admin, name: str) -> tuple[int, State]:
    node = client.cluster.coordinator(CoordinatorType.TRANSACTION, name)
    response: m.DescribeTransactionsResponse = client.cluster.ask(node, m.DescribeTransactionsRequest([name]))
    state = only(response.transaction_states, f"transactional id {name}")
    if state.error_code:
        raise ApiFailed(f"transactional id {name}", state.error_code)
    return node, state


def document(coordinator: int, state: State, now_ms: int) -> dict[str, Any]:
    """Return a transactional id's document for --json; unknown times are None."""
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


def producers(client: Admin, topic: Topic, partitions: Sequence[int]) -> dict[int, list[Producer]]:
    """Return the producers that each partition remembers, sorted by id. Raises ClientError."""
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


def hanging(old: Iterable[dict[str, Any]], ongoing: set[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """Return the rows of open transactions, `old`, whose (producer id, topic, partition) is not `ongoing`."""
    return [row for row in old if (row["producer_id"], row["topic"], row["partition"]) not in ongoing]


def _open_partitions(client: Admin, producer_ids: set[int]) -> set[tuple[int, str, int]]:
    """Return (producer id, topic, partition) of each partition in the producers' current transactions."""
    listed = list_transactions(client, m.ListTransactionsRequest(producer_id_filters=sorted(producer_ids)))
    found = set()
    for one in listed:
        _, state = describe_transaction(client, one.transactional_id)
        found |= {
            (state.producer_id, topic.topic, number) for topic in state.topics for number in topic.partitions
        }
    return found


def _check(transactional_id: str | None, hanging: Hanging) -> None:
    """Check that the flags name one transaction in one way. Raises CliError."""
    named = any(value is not None for value in hanging)
    if (transactional_id is not None) == named:
        raise CliError(
            "say which: --transactional-id, or --topic and --partition of a hanging one", USAGE_ERROR
        )
    if not named:
        return
    if hanging.topic is None or hanging.partition is None:
        raise CliError("a hanging transaction is in a partition: --topic and --partition", USAGE_ERROR)
    if (hanging.start_offset is None) == (hanging.producer_id is None):
        raise CliError("say which in that partition: --start-offset or --producer-id", USAGE_ERROR)
    epochs = (hanging.producer_epoch, hanging.coordinator_epoch)
    if hanging.producer_id is None and epochs != (None, None):
        raise CliError("--producer-epoch and --coordinator-epoch go with --producer-id", USAGE_ERROR)


def _abort_by_id(client: Admin, name: str, *, is_sure: bool) -> None:
    """Abort an id's open transaction by fencing its producer, as Kafka's forceTerminateTransaction does."""
    _, state = describe_transaction(client, name)
    if state.transaction_state != ONGOING:
        raise CliError(
            f"transactional id {name} has no open transaction: it is {state.transaction_state}; "
            "--topic aborts one that hangs in a partition"
        )
    confirm(f"abort the transaction of {name}, and fence its producer?", is_sure=is_sure)
    Transactions(client.cluster).init(name, state.transaction_timeout_ms)


def _producer(client: Admin, topic: Topic, hanging: Hanging) -> Producer:
    """Return the producer of a hanging transaction, with the epochs for the marker. Raises CliError."""
    assert hanging.partition is not None
    if hanging.producer_epoch is not None and hanging.coordinator_epoch is not None:
        assert hanging.producer_id is not None
        return Producer(
            hanging.producer_id, hanging.producer_epoch, coordinator_epoch=hanging.coordinator_epoch
        )
    place = f"{topic.name}-{hanging.partition}"
    for producer in producers(client, topic, [hanging.partition])[hanging.partition]:
        start = producer.current_txn_start_offset
        if start >= 0 and (producer.producer_id == hanging.producer_id or start == hanging.start_offset):
            if hanging.producer_epoch is not None:
                producer.producer_epoch = hanging.producer_epoch
            # It is -1 before the producer's first marker; 0 is below the epoch of any coordinator, as in
            # Kafka's tool.
            producer.coordinator_epoch = (
                max(producer.coordinator_epoch, 0)
                if hanging.coordinator_epoch is None
                else hanging.coordinator_epoch
            )
            return producer
    which = (
        f"of producer {hanging.producer_id}"
        if hanging.producer_id is not None
        else f"that begins at {hanging.start_offset:,}"
    )
    raise CliError(
        f"{place} has no open transaction {which}; mpbroker txn describe-producers {topic.name} has them"
    )


def _write_marker(client: Admin, topic: str, partition: int, producer: Producer) -> None:
    """Abort a hanging transaction by a marker sent to the leader, as Kafka's tool does. Raises ApiFailed."""
    leaders = {part.index: part.leader for part in client.topic(topic).partitions}
    if leaders[partition] < 0:
        raise without_leader(topic, partition)
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer.producer_id,
        producer.producer_epoch,
        transaction_result=False,
        topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(topic, [partition])],
        coordinator_epoch=producer.coordinator_epoch,
    )
    response: m.WriteTxnMarkersResponse = client.cluster.ask(
        leaders[partition], m.WriteTxnMarkersRequest([marker])
    )
    results = [part for one in response.markers for answer in one.topics for part in answer.partitions]
    result = only(results, f"{topic}-{partition}")
    if result.error_code:
        raise ApiFailed(f"{topic}-{partition}", result.error_code)
