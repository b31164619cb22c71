"""AlterConfigs, IncrementalAlterConfigs, CreatePartitions: through a handler whose peers are the test."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.handlers.api_parts import config_changes
from mpbroker.ipc.calls import (
    AlteredResources,
    AlterSettings,
    ConfigAlteration,
    ConfigChange,
    CreatePartitions,
    Failed,
    MorePartitions,
)
from mpbroker.protocol.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    IncrementalAlterConfigsRequest,
)
from tests.support.handler_rig import Rig, topic_image

ALTER, CREATE_PARTITIONS, INCREMENTAL = 33, 37, 44
TOPIC, BROKER, GROUP = 2, 4, 32
INVALID_REQUEST, NOT_CONTROLLER, TIMED_OUT = 42, 41, 7
Altered = IncrementalAlterConfigsRequest.AlterConfigsResource
Change = IncrementalAlterConfigsRequest.AlterableConfig
READY = (topic_image("orders", 1, partitions=2),)


def altered(*changes: tuple[str, int, str | None], kind: int = TOPIC, name: str = "orders") -> Altered:
    return Altered(kind, name, [Change(*change) for change in changes])


def results(response: Any) -> list[tuple[int, str]]:
    return [(r.error_code, r.resource_name) for r in response.responses]


@pytest.mark.parametrize("version", [0, 1])
def test_topics_are_altered_by_the_coordinator(ready: Rig, version: int) -> None:
    """Check that results have the order of the request, also those that are refused at once."""
    resources = [
        altered(("retention.ms", 0, "1"), ("segment.ms", 1, None)),
        altered(("retention.ms", 0, None), name="nulls"),
        altered(("retention.ms", 0, "1"), ("retention.ms", 1, None), name="doubles"),
        altered(("retention.ms", 7, "1"), name="odd"),
        altered(name="twice"),
        altered(name="twice"),
        altered(("x", 0, "1"), kind=GROUP, name="g"),
        altered(("num.io.threads", 0, "1"), kind=BROKER, name="1"),
        altered(kind=BROKER, name=""),
        altered(kind=BROKER, name="2"),
        altered(("cleanup.policy", 2, "compact"), name="others"),
    ]
    body = IncrementalAlterConfigsRequest(resources, True)
    call, asked = ready.asked(INCREMENTAL, version, body)
    assert asked == AlterSettings(
        [
            ConfigAlteration("orders", [ConfigChange("retention.ms", 0, "1"), ConfigChange("segment.ms", 1)]),
            ConfigAlteration("g", [ConfigChange("x", 0, "1")], kind=32),
            ConfigAlteration("1", [ConfigChange("num.io.threads", 0, "1")], kind=4),
            ConfigAlteration("", [], kind=4),
            ConfigAlteration("others", [ConfigChange("cleanup.policy", 2, "compact")]),
        ],
        True,
    )
    ready.reply(call, AlteredResources([(0, None), (40, "no"), (42, "why"), (0, None), (3, "no")]))
    response = ready.answer(INCREMENTAL, version)
    wrong = ["nulls", "doubles", "odd", "twice", "twice"]
    assert results(response) == [
        (0, "orders"),
        *((INVALID_REQUEST, name) for name in wrong),
        (40, "g"),
        (INVALID_REQUEST, "1"),
        (0, ""),
        (INVALID_REQUEST, "2"),
        (3, "others"),
    ]
    assert response.responses[7].error_message == "why"


@pytest.mark.parametrize("dies", [False, True])
def test_many_resources_are_altered_some_at_a_time(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(config_changes, "ALTERED_AT_ONCE", 2)
    resources = [altered(("retention.ms", 0, "1"), name=f"t{number}") for number in range(5)]
    resources.insert(3, altered(("retention.ms", 0, None), name="nulls"))
    ready.send(INCREMENTAL, 1, IncrementalAlterConfigsRequest(resources))
    for names in (["t0", "t1"], ["t2", "t3"]) if dies else (["t0", "t1"], ["t2", "t3"], ["t4"]):
        ((call, asked),) = ready.coordinator.take()
        assert [one.name for one in asked.alterations] == names
        if dies and names[0] == "t2":
            ready.coordinator.answer(call, Failed(-1, "gone"))
        else:
            ready.coordinator.answer(call, AlteredResources([(0, None)] * len(names)))
        ready.turn()
    code = NOT_CONTROLLER if dies else 0
    assert results(ready.answer(INCREMENTAL, 1)) == [
        *((0, "t0"), (0, "t1"), (code, "t2"), (INVALID_REQUEST, "nulls"), (code, "t3"), (code, "t4"))
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_settings_are_replaced(ready: Rig, version: int) -> None:
    resource = AlterConfigsRequest.AlterConfigsResource(
        TOPIC, "orders", [AlterConfigsRequest.AlterableConfig("retention.ms", "1")]
    )
    call, asked = ready.asked(ALTER, version, AlterConfigsRequest([resource]))
    assert asked == AlterSettings([ConfigAlteration("orders", [ConfigChange("retention.ms", 0, "1")], True)])
    ready.reply(call, Failed(-1, "gone"))
    response = ready.answer(ALTER, version)
    assert results(response) == [(NOT_CONTROLLER, "orders")]
    assert response.responses[0].error_message == "gone"


def partitions(*counts: int) -> CreatePartitionsRequest:
    of = CreatePartitionsRequest
    topics = [of.CreatePartitionsTopic("orders", count, None) for count in counts]
    assigned = of.CreatePartitionsTopic("other", 2, [of.CreatePartitionsAssignment([1])])
    return of([*topics, assigned], 5_000)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_made_by_the_coordinator(ready: Rig, version: int) -> None:
    call, asked = ready.asked(CREATE_PARTITIONS, version, partitions(4))
    assert isinstance(asked, CreatePartitions)
    assert asked.topics == [MorePartitions("orders", 4), MorePartitions("other", 2, [[1]])]
    assert asked.account is not None
    assert asked.account.strict == (version >= 3)
    ready.reply(call, AlteredResources([(0, None), (37, "no")], 30))
    response = ready.answer(CREATE_PARTITIONS, version)
    assert [(r.name, r.error_code) for r in response.results] == [("orders", 0), ("other", 37)]
    assert response.throttle_time_ms == 30


def test_a_topic_that_is_named_twice(ready: Rig) -> None:
    _, asked = ready.asked(CREATE_PARTITIONS, 3, partitions(4, 5))
    assert asked.topics == [MorePartitions("other", 2, [[1]])]
    ready.coordinator_dies()
    ready.turn()
    response = ready.answer(CREATE_PARTITIONS, 3)
    found = [(r.name, r.error_code) for r in response.results]
    assert found == [("orders", INVALID_REQUEST), ("other", NOT_CONTROLLER)]
    assert response.results[1].error_message == "the coordinator died before it answered"


def test_partitions_that_take_too_long(ready: Rig) -> None:
    now_ms = 1_000
    ready.handler.broker.monotonic_ms = lambda: now_ms
    ready.send(CREATE_PARTITIONS, 3, partitions(4))
    ready.handler.broker.coordinator.expire(now_ms + 5_000)
    ready.turn()
    response = ready.answer(CREATE_PARTITIONS, 3)
    assert {r.error_code for r in response.results} == {TIMED_OUT}
