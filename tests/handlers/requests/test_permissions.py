"""The table of permissions: every API has its row, and the APIs go by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.config.keys import Secret
from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.requests.permissions import RULES, Rule
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.session import SecurityProtocol
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import REQUESTS
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.filled_requests import filled
from tests.support.forwarded_requests import errors_in
from tests.support.handler_rig import Rig, request_frame, topic_image
from tests.support.handler_rig import rig as make_rig

APIS = all_apis()
ROOT = Path(__file__).parents[3]
ORDERS = topic_image("orders", 1)
DENIALS = {29, 30, 31, 53, 65}
# Kinds of resources that hold everything.
EVERYTHING = [
    AclImage(
        kind,
        "kafka-cluster" if kind == ResourceType.CLUSTER else "*",
        PatternType.LITERAL,
        "User:*",
        "*",
        Operation.ALL,
        Permission.ALLOW,
    )
    for kind in ResourceType
    if kind not in (ResourceType.UNKNOWN, ResourceType.ANY)
]
# These leave out what the client may not see, or have something to tell everybody.
SILENT = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_DELEGATION_TOKEN}
# These answer clients without a name before they look at permissions.
NEED_A_NAME = {ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN}


@pytest.fixture(name="guarded")
def _guarded() -> Iterator[Rig]:
    config = BrokerConfig(
        authorizer_class_name=STANDARD_AUTHORIZER, delegation_token_secret_key=Secret("secret")
    )
    with make_rig(config) as made:
        yield made


def request_of(key: int) -> Any:
    body: Any = filled(REQUESTS[key])
    match key:
        case ApiKey.PRODUCE:
            body.acks = -1
            body.topic_data[0].topic_id = ORDERS.topic_id
        case ApiKey.FETCH:
            body.session_epoch = -1
            body.topics[0].topic_id = ORDERS.topic_id
        case ApiKey.OFFSET_COMMIT:
            body.topics[0].topic_id = ORDERS.topic_id
        case ApiKey.DELETE_TOPICS:
            body.topics[0].name = "orders"
        case ApiKey.INIT_PRODUCER_ID:
            body.transactional_id = "x"
        case ApiKey.CREATE_DELEGATION_TOKEN:
            body.owner_principal_type, body.owner_principal_name = "User", "bob"
            body.renewers[0].principal_type, body.renewers[0].principal_name = "User", "eve"
        case ApiKey.METADATA:
            body.topics[0].name = "orders"
        case ApiKey.DESCRIBE_CONFIGS | ApiKey.ALTER_CONFIGS | ApiKey.INCREMENTAL_ALTER_CONFIGS:
            body.resources[0].resource_type = 2
    return body


def sent(guarded: Rig, key: int) -> tuple[list[Any], Any]:
    """Return what the coordinator was asked, and the answer if there is one already."""
    latest = APIS[key].latest
    if key in NEED_A_NAME:
        guarded.processor.open_session(7, SecurityProtocol.SASL_SSL)
    guarded.processor.send(request_frame(key, latest, request_of(key)))
    guarded.turn()
    asked = guarded.coordinator.take()
    return asked, None if asked else guarded.answer(key, latest)


def test_every_api_has_its_rule() -> None:
    assert {*APIS} == {*RULES}


@pytest.mark.parametrize(
    "key", [key for key in APIS if RULES[ApiKey(key)] != Rule()], ids=lambda k: APIS[k].name
)
def test_who_may_nothing_is_refused(guarded: Rig, key: int) -> None:
    guarded.publish(ORDERS)
    rule = RULES[ApiKey(key)]
    asked, answer = sent(guarded, key)
    if key in SILENT:
        assert asked
    elif rule.whole or rule.each:
        assert asked == []
        expected = {need.denied for need in (*rule.whole, *rule.each)}
        assert set(errors_in(answer)) & expected, answer
    else:
        assert not set(errors_in(answer)) & DENIALS


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_who_may_everything_is_served(guarded: Rig, key: int) -> None:
    guarded.publish(ORDERS, acls=EVERYTHING)
    _, answer = sent(guarded, key)
    assert answer is None or not set(errors_in(answer)) & DENIALS


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/SECURITY.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \((?:\d+)\) \| (.*) \|$", page, re.MULTILINE))
    assert rows == {APIS[key].name: written(rule) for key, rule in RULES.items()}


def written(rule: Rule) -> str:
    """The cells of a rule: needs, then what is to be said of them."""
    needs = [f"{need}" for need in (*rule.whole, *rule.each)]
    text = ", ".join(needs) or "nothing"
    if rule.instead is not None:
        text += f"; or {rule.instead}"
    return f"{text} | {rule.remark}" if rule.remark else f"{text} | "
