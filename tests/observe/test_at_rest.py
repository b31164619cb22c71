"""Looks at directories of brokers that were stopped."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mpbroker.observe import at_rest
from mpbroker.testing import Broker
from tests.support.group_members import commit


def test_groups_at_rest_are_as_transactions_were_decided(filled_broker: Broker) -> None:
    for group, is_kept in (("kept", True), ("dropped", False)):
        commit(filled_broker.bootstrap_servers, group, "orders", {0: 0})
        settings = {"bootstrap.servers": filled_broker.bootstrap_servers, "transactional.id": group}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        consumer = Consumer({"bootstrap.servers": filled_broker.bootstrap_servers, "group.id": group})
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("orders", 1, 9)], metadata, 30)
        consumer.close()
        if is_kept:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    filled_broker.stop(keep=True)
    _, groups = at_rest.sample([str(filled_broker.log_dir)])
    committed = {one.group: one.committed for one in groups.groups}
    assert committed["kept"] == {("orders", 0): 0, ("orders", 1): 9}
    assert committed["dropped"] == {("orders", 0): 0}


def test_a_partition_that_cannot_be_read_hides_no_other(filled_broker: Broker) -> None:
    filled_broker.stop(keep=True)
    (segment,) = (filled_broker.log_dir / "orders-1").glob("*.log")
    segment.unlink()
    segment.symlink_to("a-disk-that-is-missing")
    sample, _ = at_rest.sample([str(filled_broker.log_dir)])
    assert sample.broker.note == "cannot be read: orders-1"
    (left,) = [one for one in sample.partitions if one.topic == "orders"]
    assert (left.partition, left.log_end_offset) == (0, 0)


def test_a_groups_topic_that_is_too_large_is_left_alone(
    filled_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled_broker.stop(keep=True)
    monkeypatch.setattr(at_rest, "GROUP_BYTES_MAX", 10)
    _, groups = at_rest.sample([str(filled_broker.log_dir)])
    assert (groups.groups, "start the broker" in groups.problem) == ((), True)
