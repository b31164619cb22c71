"""DescribeClientQuotas and AlterClientQuotas through a handler, and what the coordinator makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.metadata_records import decode_record, encode_record
from mpbroker.coordinator.metadata.state import Decider, MetadataState
from mpbroker.ipc.calls import AlteredQuotas, AlterQuotas, Failed, QuotaAlteration
from mpbroker.ipc.metadata import QuotaImage
from mpbroker.protocol.messages import (
    AlterClientQuotasRequest,
    ClientQuotaRecord,
    DescribeClientQuotasRequest,
)
from mpbroker.quotas.entities import InvalidQuota, entity_of
from tests.support.handler_rig import Rig, base, delta, rig, topic_image

DESCRIBE, ALTER = 48, 49
ALICE, DEFAULT_CLIENT = [("user", "alice")], [("client-id", None)]
Component = DescribeClientQuotasRequest.ComponentData


@pytest.fixture(name="ready")
def _ready() -> Iterator[Rig]:
    with rig() as made:
        made.publish(topic_image("plain", 1))
        yield made


def know(rig: Rig, *quotas: QuotaImage) -> None:
    rig.bulletin.publish_delta(delta(quotas=quotas))
    rig.turn()


def described(rig: Rig, version: int, strict: bool, *components: Component) -> Any:
    return rig.ask(DESCRIBE, version, DescribeClientQuotasRequest(list(components), strict))


def alter_request(
    *entries: tuple[list[tuple[str, str | None]], dict[str, float | None]], **options: bool
) -> Any:
    return AlterClientQuotasRequest(
        [
            AlterClientQuotasRequest.EntryData(
                [AlterClientQuotasRequest.EntityData(*pair) for pair in entity],
                [
                    AlterClientQuotasRequest.OpData(key, 0.0 if value is None else value, value is None)
                    for key, value in changes.items()
                ],
            )
            for entity, changes in entries
        ],
        **options,
    )


@pytest.mark.parametrize("version", [0, 1])
def test_describe(ready: Rig, version: int) -> None:
    know(ready, QuotaImage(ALICE, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}))
    know(ready, QuotaImage(DEFAULT_CLIENT, {"consumer_byte_rate": 2048.0}))
    answer = described(ready, version, False)
    assert (answer.error_code, answer.error_message) == (0, "")
    found = {
        tuple((e.entity_type, e.entity_name) for e in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries
    }
    assert found == {
        (("user", "alice"),): {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        (("client-id", None),): {"consumer_byte_rate": 2048.0},
    }
    know(ready, QuotaImage(ALICE, {}))
    assert len(described(ready, version, False).entries) == 1
    assert (
        described(ready, version, True, Component("client-id", 1, None)).entries[0].values[0].value == 2048.0
    )


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([Component("", 0, "a")], 42),
        ([Component("user", 0, "a"), Component("user", 0, "b")], 42),
        ([Component("group", 0, "a")], 35),
        ([Component("user", 3, None)], 42),
        ([Component("user", 0, None)], 42),
        ([Component("user", 1, "a")], 42),
        ([Component("ip", 2, None), Component("user", 2, None)], 42),
    ],
)
def test_filters_that_are_refused(ready: Rig, components: list[Component], code: int) -> None:
    answer = described(ready, 1, False, *components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


def test_a_base_replaces_all_quotas(ready: Rig) -> None:
    know(ready, QuotaImage(ALICE, {"producer_byte_rate": 1.0}))
    ready.bulletin.publish_base(base(quotas=[QuotaImage(DEFAULT_CLIENT, {"producer_byte_rate": 2.0})]))
    ready.turn()
    assert [entity for entity, _ in ready.metadata.quotas] == [(("client-id", None),)]


@pytest.mark.parametrize("version", [0, 1])
def test_alter_is_the_coordinators(ready: Rig, version: int) -> None:
    asked = alter_request(
        (ALICE, {"producer_byte_rate": 5.0, "request_percentage": None}),
        ([("ip", "127.0.0.1")], {"connection_creation_rate": 2.0}),
        validate_only=True,
    )
    call, message = ready.asked(ALTER, version, asked)
    changes: dict[str, float | None] = {"producer_byte_rate": 5.0, "request_percentage": None}
    assert message.alterations[0] == QuotaAlteration(ALICE, changes)
    assert message.alterations[1].entity == [("ip", "127.0.0.1")]
    assert message.validate_only
    ready.reply(call, AlteredQuotas([(0, None), (42, "no")]))
    answer = ready.answer(ALTER, version)
    assert [(e.error_code, e.error_message) for e in answer.entries] == [(0, None), (42, "no")]
    assert [(e.entity[0].entity_type, e.entity[0].entity_name) for e in answer.entries] == [
        ("user", "alice"),
        ("ip", "127.0.0.1"),
    ]


def test_a_host_name_is_not_looked_up(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that does not answer would stop the handler; the coordinator refuses what is no address."""

    def dead_resolver(*_: object) -> None:
        raise AssertionError("a resolver was asked")

    monkeypatch.setattr("socket.getaddrinfo", dead_resolver)
    asked = alter_request(([("ip", "localhost")], {"connection_creation_rate": 2.0}))
    _, message = ready.asked(ALTER, 1, asked)
    (entity,) = message.alterations[0].entity
    assert tuple(entity) == ("ip", "localhost")
    with pytest.raises(InvalidQuota, match="localhost is not an IP address"):
        entity_of([tuple(entity)])


def test_alter_without_a_coordinator(ready: Rig) -> None:
    call, _ = ready.asked(ALTER, 1, alter_request((ALICE, {"producer_byte_rate": 5.0})))
    ready.reply(call, Failed(15, "later"))
    assert [(e.error_code, e.error_message) for e in ready.answer(ALTER, 1).entries] == [(41, "later")]


def test_a_quota_with_two_values(ready: Rig) -> None:
    op = AlterClientQuotasRequest.OpData("producer_byte_rate", 1.0, False)
    entity = [AlterClientQuotasRequest.EntityData("user", "a")]
    entry = AlterClientQuotasRequest.EntryData(entity, [op, op])
    assert ready.ask(ALTER, 1, AlterClientQuotasRequest([entry])).entries[0].error_code == 42
    assert not ready.coordinator.take()


# ---- the coordinator


def decider() -> Decider:
    return Decider(BrokerConfig(), 100, lambda: bytes(16))


def decide(state: MetadataState, *alterations: QuotaAlteration, validate_only: bool = False) -> Any:
    """The answer's results, the decision's entities, and the state with its records applied."""
    decision = decider().decide(state, AlterQuotas(list(alterations), validate_only))
    after = state.draft()
    after.apply_all([decode_record(encode_record(record)) for record in decision.records])
    assert isinstance(decision.answer, AlteredQuotas)
    return decision.answer.results, decision.quotas, after


def test_the_coordinator_records_what_changes() -> None:
    state = MetadataState()
    pair = [("user", "alice"), ("client-id", None)]
    results, changed, after = decide(
        state,
        QuotaAlteration(ALICE, {"producer_byte_rate": 5.0, "consumer_byte_rate": None}),
        QuotaAlteration(pair, {"request_percentage": 0.5}),
    )
    assert results == [(0, None), (0, None)]
    assert changed == [(("user", "alice"),), (("client-id", None), ("user", "alice"))]
    assert dict(after.quotas) == {
        (("user", "alice"),): {"producer_byte_rate": 5.0},
        (("client-id", None), ("user", "alice")): {"request_percentage": 0.5},
    }
    assert len(state.quotas) == 0
    # What does not change is not recorded, what is removed is forgotten.
    assert decide(after, QuotaAlteration(ALICE, {"producer_byte_rate": 5.0}))[1] == []
    _, _, removed = decide(after, QuotaAlteration(ALICE, {"producer_byte_rate": None}))
    assert [entity for entity, _ in removed.quotas] == [(("client-id", None), ("user", "alice"))]


def test_the_coordinator_refuses_one_entity_as_a_whole() -> None:
    results, changed, after = decide(
        MetadataState(),
        QuotaAlteration(ALICE, {"producer_byte_rate": 5.0, "no_such_quota": 1.0}),
        QuotaAlteration([("user", "bob")], {"producer_byte_rate": 5.0}),
        QuotaAlteration([("user", "eve")], {"producer_byte_rate": 5.0}),
        QuotaAlteration([("user", "eve")], {"producer_byte_rate": 6.0}),
    )
    assert [code for code, _ in results] == [42, 0, 42, 42]
    assert changed == [(("user", "bob"),)]
    assert len(after.quotas) == 1


def test_validate_only_changes_nothing() -> None:
    good, bad = QuotaAlteration(ALICE, {"producer_byte_rate": 5.0}), QuotaAlteration([], {})
    results, changed, after = decide(MetadataState(), good, bad, validate_only=True)
    assert ([code for code, _ in results], changed, len(after.quotas)) == ([0, 42], [], 0)


def test_the_record_is_kafkas() -> None:
    """Frame 1, type 14, version 0; one entity part; key, double, flag, no tags (flexible)."""
    record = ClientQuotaRecord([ClientQuotaRecord.EntityData("user", None)], "k", 1.0, False)
    assert encode_record(record).hex() == "010e00" + "02" + "0575736572" + "00" + "00" + "026b" + (
        "3ff0000000000000" + "00" + "00"
    )
