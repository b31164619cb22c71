"""ElectLeaders, through a handler whose peers are the test."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.messages import ElectLeadersRequest, MetadataRequest
from tests.support.handler_rig import Rig, delta, partition_payload, topic_image

METADATA, ELECT = 3, 43
PREFERRED, UNCLEAN = 0, 1
UNKNOWN, INVALID_REQUEST, NO_PREFERRED, NO_ELIGIBLE, NOT_NEEDED = 3, 42, 80, 83, 84
ORDERS = topic_image("orders", 1, partitions=3)
OTHERS = topic_image("others", 2, partitions=1, first_slot=4)
HIDDEN = topic_image("__cluster_metadata", 3, first_slot=5, internal=True)
Wanted = ElectLeadersRequest.TopicPartitions


@pytest.fixture(name="ready")
def _ready(rig: Rig) -> Rig:
    """The log directory of orders-1 has failed."""
    rig.publish(ORDERS, OTHERS, HIDDEN)
    rig.table.write(1, partition_payload(ORDERS, 1, flags=PartitionFlag.PARTITION_OFFLINE))
    return rig


def results(response: Any) -> dict[str, dict[int, int]]:
    return {
        topic.topic: {one.partition_id: one.error_code for one in topic.partition_result}
        for topic in response.replica_election_results
    }


@pytest.mark.parametrize(
    ("version", "kind", "nobody"),
    [
        (0, PREFERRED, NO_PREFERRED),
        (1, PREFERRED, NO_PREFERRED),
        (1, UNCLEAN, NO_ELIGIBLE),
        (2, UNCLEAN, NO_ELIGIBLE),
    ],
)
def test_each_that_is_named_is_answered(ready: Rig, version: int, kind: int, nobody: int) -> None:
    wanted = [Wanted("orders", [2, 1, 3]), Wanted("nope", [0]), Wanted("__cluster_metadata", [0])]
    response = ready.ask(ELECT, version, ElectLeadersRequest(kind, wanted))
    assert response.error_code == 0
    assert results(response) == {
        "orders": {2: NOT_NEEDED, 1: nobody, 3: UNKNOWN},
        "nope": {0: UNKNOWN},
        "__cluster_metadata": {0: UNKNOWN},
    }
    told = [
        one.error_message for topic in response.replica_election_results for one in topic.partition_result
    ]
    assert told[2:4] == ["No such partition as orders-3", "No such topic as nope"]


@pytest.mark.parametrize(("kind", "nobody"), [(PREFERRED, NO_PREFERRED), (UNCLEAN, NO_ELIGIBLE)])
def test_of_all_those_are_told_that_have_no_leader(ready: Rig, kind: int, nobody: int) -> None:
    response = ready.ask(ELECT, 2, ElectLeadersRequest(kind, None))
    assert (response.error_code, results(response)) == (0, {"orders": {1: nobody}, "others": {}})


def test_an_election_of_a_kind_that_is_not_known(ready: Rig) -> None:
    response = ready.ask(ELECT, 2, ElectLeadersRequest(7, [Wanted("orders", [0, 1])]))
    assert response.error_code == INVALID_REQUEST
    assert results(response) == {"orders": dict.fromkeys((0, 1), INVALID_REQUEST)}
    (topic,) = response.replica_election_results
    assert topic.partition_result[0].error_message == "Unknown election type 7"
    assert results(ready.ask(ELECT, 2, ElectLeadersRequest(7, None))) == {}


def test_others_are_served_while_many_partitions_are_looked_at(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.handlers.context.SEARCHES_PER_PIECE", 1)
    ready.send(ELECT, 2, ElectLeadersRequest(PREFERRED, None))
    assert ready.handler.scheduler.has_work()
    ready.send(METADATA, 9, MetadataRequest([]))
    assert ready.answer(METADATA, 9).topics == []
    # One that is removed meanwhile needs no leader.
    ready.bulletin.publish_delta(delta(removed=(OTHERS.topic_id,)))
    ready.work_off()
    assert results(ready.answer(ELECT, 2)) == {"orders": {1: NO_PREFERRED}, "others": {}}
