"""`mpbroker txn abort`: ends a transaction by its id, or a hanging one in a partition.

By its id as forceTerminateTransaction of kafka-transactions.sh does: InitProducerId gives the id another
epoch, for which its coordinator aborts what is open. In a partition as abort does: WriteTxnMarkers writes a
marker there, whatever coordinators know.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from mpbroker.cli.cluster import txn
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import say
from mpbroker.client.admin import Admin, only
from mpbroker.client.consumer import PATIENCE_MS
from mpbroker.client.errors import ApiFailed, without_leader
from mpbroker.client.topics import Topic
from mpbroker.client.transactions import Transactions
from mpbroker.protocol import messages as m


class Hanging(NamedTuple):
    """The flags that name a transaction in a partition."""

    topic: str | None = None
    partition: int | None = None
    start_offset: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    coordinator_epoch: int | None = None


def check(transactional_id: str | None, hanging: Hanging) -> None:
    """Raise CliError unless the flags name one transaction in one way."""
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


def abort(
    where: ClusterAddress, transactional_id: str | None, hanging: Hanging, *, is_sure: bool, as_json: bool
) -> None:
    """Abort a transaction. Raises CliError if there is none, ApiFailed."""
    check(transactional_id, hanging)
    with open_admin(where) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, is_sure=is_sure)
            text = f"aborted the transaction of {transactional_id}, its producer is fenced"
            say(text, {"transactional_id": transactional_id, "aborted": True}, as_json=as_json)
            return
        assert hanging.topic is not None
        assert hanging.partition is not None
        topic = client.topic(hanging.topic)
        producer = _producer(client, topic, hanging)
        what = f"the transaction of producer {producer.producer_id} in {topic.name}-{hanging.partition}"
        confirm(f"abort {what}?", is_sure=is_sure)
        client.cluster.patiently(
            partial(_write_marker, client, topic.name, hanging.partition, producer), timeout_ms=PATIENCE_MS
        )
    document = {
        "topic": topic.name,
        "partition": hanging.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "aborted": True,
    }
    say(f"aborted {what}", document, as_json=as_json)


def _abort_by_id(client: Admin, name: str, *, is_sure: bool) -> None:
    _, state = txn.describe_transaction(client, name)
    if state.transaction_state != txn.ONGOING:
        raise CliError(
            f"transactional id {name} has no open transaction: it is {state.transaction_state}; "
            "what hangs in a partition is aborted with --topic"
        )
    confirm(f"abort the transaction of {name}, and fence its producer?", is_sure=is_sure)
    Transactions(client.cluster).init(name, state.transaction_timeout_ms)


def _producer(client: Admin, topic: Topic, hanging: Hanging) -> txn.Producer:
    """Return the producer whose transaction it is, with the epochs of its marker. Raises CliError."""
    assert hanging.partition is not None
    if hanging.producer_epoch is not None and hanging.coordinator_epoch is not None:
        assert hanging.producer_id is not None
        return txn.Producer(
            hanging.producer_id, hanging.producer_epoch, coordinator_epoch=hanging.coordinator_epoch
        )
    place = f"{topic.name}-{hanging.partition}"
    for producer in txn.producers(client, topic, [hanging.partition])[hanging.partition]:
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


def _write_marker(client: Admin, topic: str, partition: int, producer: txn.Producer) -> None:
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
